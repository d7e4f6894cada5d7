"""`mooncask verify`: reads every copy of every block and compares it with its checksum; wrong ones are quarantined."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.wire import BlockStat, NamespaceStat
from mooncask.errors import CorruptBlock, NoSuchNamespace
from mooncask.tools.connection import Json, Socket, connected, find_namespace, is_kv, open_existing
from mooncask.tools.keys import format_key
from mooncask.tools.listing import all_blocks, tier_names
from mooncask.tools.output import Column, console, error_console, print_json, print_table

BATCH = 32


@dataclass(slots=True)
class Checked:
    """What was found in one namespace; `wrong` blocks are quarantined."""

    namespace: str
    right: int = 0
    wrong: list[tuple[str, list[str]]] = field(default_factory=list)


def verify(
    namespace: Annotated[str | None, typer.Argument(help="Without it, all namespaces.", metavar="[NS]")] = None,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Check every block against its checksum, in all tiers, and list the wrong ones. Exit status 65 if there are any."""
    with connected(socket) as client, _progress() as progress:
        results = [_check(client, found, progress) for found in _chosen(client, namespace)]
    _print(results, as_json)
    wrong = [(key, tiers) for result in results for key, tiers in result.wrong]
    if wrong:
        key, tiers = wrong[0]
        raise CorruptBlock(key, " and ".join(tiers), f"checksum mismatch ({len(wrong)} wrong in all)")


def _chosen(client: LocalClient, name: str | None) -> list[NamespaceStat]:
    if name is None:
        return client.status().namespaces
    found = find_namespace(client, name)
    if found is None:
        raise NoSuchNamespace(name)
    return [found]


def _check(client: LocalClient, found: NamespaceStat, progress: Progress) -> Checked:
    handle, result = open_existing(client, found.name), Checked(found.name)
    task = progress.add_task(found.name, total=found.blocks)
    for blocks in _batches(all_blocks(client, handle)):
        _check_batch(client, handle, blocks, result)
        progress.advance(task, len(blocks))
    progress.update(task, total=progress.tasks[task].completed)  # blocks may have come or gone meanwhile
    return result


def _check_batch(client: LocalClient, handle: NamespaceHandle, blocks: Sequence[BlockStat], result: Checked) -> None:
    """One that was evicted or deleted since it was listed counts as wrong: the daemon's answer is the same for both."""
    answers = client.verify(handle, [block.key for block in blocks])
    for block, right in zip(blocks, answers, strict=True):
        if right:
            result.right += 1
        else:
            result.wrong.append((format_key(block.key, is_kv(handle)), tier_names(block)))


def _batches(blocks: Iterator[BlockStat]) -> Iterator[list[BlockStat]]:
    while batch := list(islice(blocks, BATCH)):
        yield batch


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    screen = error_console()
    return Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)


def _print(results: list[Checked], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "namespace": r.namespace,
                    "right": r.right,
                    "wrong": [{"key": key, "tiers": tiers} for key, tiers in r.wrong],
                }
                for r in results
            ]
        )
        return
    wrong = [[r.namespace, key, " ".join(tiers)] for r in results for key, tiers in r.wrong]
    if wrong:
        print_table([Column("namespace"), Column("wrong block"), Column("was in")], wrong)
    console().print(f"{sum(r.right for r in results):,} blocks are right, {len(wrong):,} wrong")
