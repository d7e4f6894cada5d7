"""`mooncask replay`: hit rates of eviction policies on a trace, as a table or as JSON."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mooncask.conductor.replay.policies import REPLAY_POLICY_NAMES, ReplayOptions, check_policy_name, replay_named
from mooncask.conductor.replay.replay import ReplayResult, block_tokens_of
from mooncask.conductor.traces.jsonl import read_trace
from mooncask.conductor.traces.request import Request
from mooncask.errors import BadArgument

CAPACITIES_BLOCKS = (1000, 10000, 30000, 50000, 100000)
"""Those of arXiv 2407.00079 table 1, but the unlimited one, which is the number of different blocks."""

Timed = tuple[ReplayResult, float]


def replay_command(
    trace: Annotated[Path, typer.Argument(help="A trace in the Mooncake JSONL form.", show_default=False)],
    capacity_blocks: Annotated[
        list[int] | None,
        typer.Option(help="Blocks that the cache holds; repeatable. Without it, table 1's six.", show_default=False),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(REPLAY_POLICY_NAMES)}; repeatable. Without it, all.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    leaf_first: Annotated[
        bool, typer.Option("--leaf-first", help="A block leaves only when no cached block continues it.")
    ] = False,
    hints: Annotated[
        bool, typer.Option("--hints", help="Tell the policy conversation and turn, where the trace has them.")
    ] = False,
    block_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens that one hash id stands for. Without it, those of a daemon's recording, else 512.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Replay a trace through one cache and print the share of block accesses that hit.

    A hit is a block in the longest resident prefix at arrival, looked up before the request is inserted.
    """
    names = policy or list(REPLAY_POLICY_NAMES)
    for name in names:
        check_policy_name(name)
    if block_tokens is not None and block_tokens < 1:
        raise BadArgument("--block-tokens", str(block_tokens), "at least 1")
    requests = list(read_trace(trace))
    capacities = capacity_blocks or [*CAPACITIES_BLOCKS, _different_blocks(requests)]
    tokens = block_tokens or block_tokens_of(requests)
    options = ReplayOptions(leaf_first=leaf_first, with_hints=hints, block_tokens=tokens)
    results = [_timed(name, requests, capacity, options) for name in names for capacity in capacities]
    if as_json:
        _print_json(trace, results)
    else:
        _print_table(names, capacities, results)


def _different_blocks(requests: Sequence[Request]) -> int:
    return len({key for request in requests for key in request.hash_ids})


def _timed(name: str, requests: Sequence[Request], capacity: int, options: ReplayOptions) -> Timed:
    began = time.perf_counter()
    found = replay_named(name, requests, capacity, options)
    return found, time.perf_counter() - began


def _document(timed: Timed) -> dict[str, object]:
    found, seconds = timed
    rates = {"hit_rate": found.hit_rate, "token_weighted_hit_rate": found.token_weighted_hit_rate}
    return {**asdict(found), **rates, "seconds": round(seconds, 3)}


def _print_json(trace: Path, results: Sequence[Timed]) -> None:
    """One replay is one object; several are the list `results` of one."""
    documents = [_document(timed) for timed in results]
    document = documents[0] if len(documents) == 1 else {"results": documents}
    json.dump({"trace": str(trace), **document}, sys.stdout, indent=2)
    sys.stdout.write("\n")


def _print_table(names: Sequence[str], capacities: Sequence[int], results: Sequence[Timed]) -> None:
    """A row a policy, a column a capacity; below it how many accesses and seconds that were."""
    table = Table(title="hit rate by capacity in blocks", title_justify="left", box=None, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for capacity in capacities:
        table.add_column(str(capacity), justify="right", no_wrap=True)
    for row, name in enumerate(names):
        cells = results[row * len(capacities) : (row + 1) * len(capacities)]
        table.add_row(name, *(f"{found.hit_rate:.4f}" for found, _ in cells))
    console = Console(soft_wrap=True, highlight=False) if sys.stdout.isatty() else Console(width=200, highlight=False)
    console.print(table)
    seconds = sum(timed[1] for timed in results)
    console.print(f"{results[0][0].accesses} block accesses in {results[0][0].requests} requests; {seconds:.1f} s")
