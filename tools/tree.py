"""`mooncask tree`: the prefix tree of a KV namespace. Blocks that only one block continues are shown as one run.

Walking is bounded in blocks; what is not shown is counted.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from mooncask.client.control import ChainNode, Children
from mooncask.client.control_client import ControlClient
from mooncask.errors import BadRequest
from mooncask.tools.connection import Json, Namespace, Socket, complete_key, connected, socket_of, the_namespace
from mooncask.tools.keys import format_size
from mooncask.tools.output import console, counted, print_json, printable

if TYPE_CHECKING:
    from rich.tree import Tree

WALKED_MAX = 5000
"""Blocks of one picture; a larger tree is looked at from a key on, or with less depth."""

Fetch = Callable[[str, int], Children]
"""What continues a key (an empty one: where chains begin), and at most how many of them."""


@dataclass(slots=True)
class Run:
    """Blocks in a row, and what continues the last of them as far as it is shown."""

    nodes: list[ChainNode]
    branches: "list[Run]" = field(default_factory=list)

    @property
    def hidden(self) -> int:
        """Branches that are there and not shown."""
        return max(0, self.nodes[-1].children - len(self.branches))

    @property
    def tiers(self) -> Counter[str]:
        return Counter(tier for node in self.nodes for tier in node.tiers)

    @property
    def hits(self) -> int:
        """Of the block that was read most: a prefix is read as often as its first block."""
        return max(node.hits for node in self.nodes)


class Walk:
    """Asks for as much of the tree as is to be shown."""

    def __init__(self, fetch: Fetch, width: int, each_block: bool) -> None:
        self._fetch, self._width, self._each_block = fetch, width, each_block
        self.left = WALKED_MAX

    def below(self, key: str, depth: int) -> tuple[list[Run], bool]:
        """The runs that continue `key`, and whether there are more than `width`."""
        page = self._fetch(key, self._width)
        return [self._run(node, depth) for node in page.nodes], page.more

    def _run(self, first: ChainNode, depth: int) -> Run:
        run = Run([first])
        self.left -= 1
        while not self._each_block and run.nodes[-1].children == 1 and self.left > 0:
            following = self._fetch(run.nodes[-1].key, 1).nodes
            if not following:
                break  # it left meanwhile
            run.nodes += following
            self.left -= 1
        if depth > 1 and run.nodes[-1].children and self.left > 0:
            run.branches, _ = self.below(run.nodes[-1].key, depth - 1)
        return run


def tree(
    namespace: Namespace,
    key: Annotated[
        str,
        typer.Argument(help="Only what continues this block.", metavar="[KEY]", autocompletion=complete_key),
    ] = "",
    depth: Annotated[int, typer.Option(min=1, help="Levels of branches; with --blocks, of blocks.")] = 6,
    width: Annotated[int, typer.Option(min=1, max=1000, help="Branches of one block.")] = 10,
    each_block: Annotated[bool, typer.Option("--blocks", help="A line a block, not a line a run of blocks.")] = False,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Show the prefix tree of a KV namespace: tokens, sizes, tiers and hits of what prompts have in common."""
    with connected(socket) as client:
        kind = the_namespace(client, namespace).kind.value
    if kind != "kv":
        raise BadRequest(
            f"namespace {namespace} holds objects, which form no chains; mooncask ls {namespace} lists them"
        )
    with ControlClient(socket_of(socket)) as control:
        top = control.path(namespace, key).nodes[-1] if key else None
        walk = Walk(lambda parent, limit: control.children(namespace, parent, limit=limit), width, each_block)
        runs, more = walk.below(key, depth)
    if as_json:
        print_json({"namespace": namespace, "key": key, "runs": [_document(run) for run in runs], "more": more})
    else:
        _draw(namespace, top, runs, more)
    if walk.left <= 0 and not as_json:
        console().print(f"... stopped after {WALKED_MAX:,} blocks; mooncask tree {namespace} KEY shows one branch")


def _draw(namespace: str, top: ChainNode | None, runs: list[Run], more: bool) -> None:
    from rich.text import Text
    from rich.tree import Tree

    title = _label(Run([top])) if top is not None else printable(namespace)
    drawing = Tree(Text(title), guide_style="dim")
    for run in runs:
        _grow(drawing, run)
    if more:
        drawing.add(Text("... and more; --width shows them", style="dim"))
    if not runs:
        drawing.add(Text("nothing continues it" if top else "no blocks", style="dim"))
    console().print(drawing, soft_wrap=True)


def _grow(drawing: "Tree", run: Run) -> None:
    from rich.text import Text

    branch = drawing.add(Text(_label(run)))
    for below in run.branches:
        _grow(branch, below)
    if run.hidden:
        tip = run.nodes[-1]
        blocks = counted(max(tip.blocks_below - 1 - _shown(run), run.hidden), "block")
        branch.add(Text(f"... {counted(run.hidden, 'branch', 'branches')} more with {blocks}", style="dim"))


def _label(run: Run) -> str:
    first, last = run.nodes[0], run.nodes[-1]
    where = f"block {first.depth}" if first is last else f"blocks {first.depth}-{last.depth}"
    tokens = sum(node.tokens for node in run.nodes)
    tiers = " ".join(
        tier if count == len(run.nodes) else f"{tier}:{count}/{len(run.nodes)}" for tier, count in run.tiers.items()
    )
    size = format_size(sum(node.size_bytes for node in run.nodes))
    parts = [where, counted(tokens, "token"), size, tiers or "nowhere", counted(run.hits, "hit"), last.key]
    return "  ".join(parts)


def _shown(run: Run) -> int:
    """Blocks in the branches that are shown, whole subtrees."""
    return sum(below.nodes[0].blocks_below for below in run.branches)


def _document(run: Run) -> dict[str, object]:
    return {
        "first": run.nodes[0].key,
        "last": run.nodes[-1].key,
        "depth": run.nodes[0].depth,
        "blocks": len(run.nodes),
        "tokens": sum(node.tokens for node in run.nodes),
        "size_bytes": sum(node.size_bytes for node in run.nodes),
        "tiers": dict(run.tiers),
        "hits": run.hits,
        "blocks_below": run.nodes[-1].blocks_below - 1,
        "branches": [_document(below) for below in run.branches],
        "hidden": run.hidden,
    }
