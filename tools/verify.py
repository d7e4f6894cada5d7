"""`mooncask verify`: reads every copy of every block and compares it with its checksum; wrong ones are quarantined by the
daemon, listed here, and never repaired.

A block that is not there when its turn comes may have been evicted since it was listed, or quarantined by this very check:
the daemon answers both alike. Its log of departures tells them apart.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mooncask.client.control_client import ControlClient
from mooncask.client.listed_namespace import open_as_listed
from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.wire import BlockStat, NamespaceStat
from mooncask.errors import CorruptBlock, DeadlineExceeded
from mooncask.tools.block_walk import all_blocks, batches, tier_names
from mooncask.tools.connection import (
    Json,
    Socket,
    complete_namespace,
    connected,
    is_kv,
    socket_of,
    the_namespace,
)
from mooncask.tools.keys import format_key
from mooncask.tools.output import Column, console, counted, error_console, print_json, print_table

BATCH_BLOCKS = 32
BATCH_BYTES = 64 << 20
"""Of one request: a second's work for a slow disk. A longer object is a request of its own."""
DEADLINE_SECONDS = 60.0
EVENTS = 1000
"""Departures to look through: many more than leave while one batch is read."""

CLOCK_SECONDS = 1.0
"""The log may tell a departure's time in whole seconds."""


class TierChoice(StrEnum):
    """Where a block must have a copy to be checked."""

    HBM = "hbm"
    DRAM = "dram"
    NVME = "nvme"


@dataclass(slots=True)
class Checked:
    """What was found in one namespace: `wrong` blocks are quarantined, `left` ones were gone before they were read, `late` ones
    could not be read in time."""

    namespace: str
    right: int = 0
    left: int = 0
    late: list[str] = field(default_factory=list)
    wrong: list[tuple[str, list[str]]] = field(default_factory=list)


def verify(
    namespace: Annotated[
        str | None,
        typer.Argument(help="Without it, all namespaces.", metavar="[NS]", autocompletion=complete_namespace),
    ] = None,
    tier: Annotated[
        TierChoice | None, typer.Option(help="Only blocks with a copy in this tier; all their copies are checked.")
    ] = None,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Check every block against its checksum, in all tiers, and list the wrong ones. Exit status 65 if there are any."""
    with connected(socket) as client, ControlClient(socket_of(socket)) as control, _progress() as progress:
        check = Check(client, control, tier.value if tier is not None else "", progress)
        chosen = [the_namespace(client, namespace)] if namespace is not None else client.status().namespaces
        results = [check.namespace(found) for found in chosen]
    _print(results, as_json)
    wrong = [(key, tiers) for result in results for key, tiers in result.wrong]
    if wrong:
        key, tiers = wrong[0]
        raise CorruptBlock(key, " and ".join(tiers), f"checksum mismatch ({len(wrong)} wrong in all)")
    late = [key for result in results for key in result.late]
    if late:
        raise DeadlineExceeded(f"{counted(len(late), 'block')} not checked, {late[0][:80]} first", DEADLINE_SECONDS)


class Check:
    """Goes through namespaces, a batch at a time."""

    def __init__(self, client: LocalClient, control: ControlClient, tier: str, progress: Progress) -> None:
        self._client, self._control = client, control
        self._tier, self._progress = tier, progress
        self._since_seconds = time.time() - CLOCK_SECONDS

    def namespace(self, found: NamespaceStat) -> Checked:
        handle, result = open_as_listed(self._client, found), Checked(found.name)
        task = self._progress.add_task(found.name, total=found.blocks)
        for blocks in batches(all_blocks(self._client, handle), BATCH_BLOCKS, BATCH_BYTES):
            chosen = [block for block in blocks if not self._tier or self._tier in tier_names(block)]
            if chosen:
                self.batch(handle, chosen, result)
            self._progress.advance(task, len(blocks))
        self._progress.update(task, total=self._progress.tasks[task].completed)  # blocks came or went meanwhile
        return result

    def batch(self, handle: NamespaceHandle, blocks: Sequence[BlockStat], result: Checked) -> None:
        """Blocks as they were listed; what became of each goes into `result`."""
        try:
            answers = self._client.verify(handle, [block.key for block in blocks], DEADLINE_SECONDS)
        except DeadlineExceeded:
            result.late += [format_key(block.key, is_kv(handle)) for block in blocks]
            return
        absent = [block for block, right in zip(blocks, answers, strict=True) if not right]
        result.right += len(blocks) - len(absent)
        quarantined = self._quarantined(handle) if absent else set()
        for block in absent:
            key = format_key(block.key, is_kv(handle))
            if key in quarantined:
                result.wrong.append((key, tier_names(block)))
            else:
                result.left += 1

    def _quarantined(self, handle: NamespaceHandle) -> set[str]:
        """Keys of the namespace that left for a wrong checksum, since the check began."""
        events = self._control.events(EVENTS)
        return {
            gone.key
            for gone in events.departures
            if gone.namespace == handle.name
            and gone.reason == "quarantined"
            and gone.time_seconds >= self._since_seconds
        }


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    found = error_console()
    return Progress(*columns, console=found, transient=True, disable=not found.is_terminal)


def _print(results: list[Checked], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "namespace": r.namespace,
                    "right": r.right,
                    "left": r.left,
                    "late": r.late,
                    "wrong": [{"key": key, "tiers": tiers} for key, tiers in r.wrong],
                }
                for r in results
            ]
        )
        return
    wrong = [[r.namespace, key, " ".join(tiers)] for r in results for key, tiers in r.wrong]
    if wrong:
        print_table([Column("namespace"), Column("wrong block"), Column("was in")], wrong)
    right, left = sum(r.right for r in results), sum(r.left for r in results)
    gone = f", {left:,} left before they were read" if left else ""
    console().print(f"{counted(right, 'block')} {'is' if right == 1 else 'are'} right, {len(wrong):,} wrong{gone}")
