"""All engines that are followed, and the question that routers ask: how much of a prompt has each?

Bounds: engines, and blocks over all of them. Belongs to one event loop.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mooncask.conductor.serving.indexer.table import Matched, PrefixTable
from mooncask.conductor.serving.kv_events.events import Event, Stored
from mooncask.conductor.serving.kv_events.following import Following
from mooncask.errors import BadRequest

if TYPE_CHECKING:
    import zmq.asyncio

log = logging.getLogger(__name__)

STREAMS_MAX = 1024
ADAPTERS_MAX = 64
"""LoRA adapters of one stream."""


@dataclass(frozen=True, slots=True)
class Instance:
    """An engine as routers name it, and the prompts for which its KV can be used."""

    tenant: str
    name: str
    model: str
    block_tokens: int
    salt: str = ""
    lora: str = ""
    """Of events that name none."""


@dataclass(slots=True)
class _Stream:
    """One rank of an engine: its events, and a table for each adapter."""

    instance: Instance
    following: Following
    tables: dict[str, PrefixTable] = field(default_factory=dict)
    task: "asyncio.Task[None] | None" = None


@dataclass(slots=True)
class Standing:
    """What one engine has of a prompt, in blocks: over all ranks, and of each."""

    matched: Matched
    ranks: dict[int, int]


class Index:
    """`blocks_max` over all engines, an equal share of it for each of them."""

    def __init__(self, context: "zmq.asyncio.Context", seed: int, blocks_max: int) -> None:
        self._context, self.seed, self._blocks_max = context, seed, blocks_max
        self._streams: dict[tuple[str, str, int], _Stream] = {}

    def register(self, instance: Instance, rank: int, endpoint: str, replay_endpoint: str) -> None:
        """Follows it from now on; what was registered under this name and rank is replaced. Raises BadRequest."""
        key = (instance.tenant, instance.name, rank)
        if key not in self._streams and len(self._streams) >= STREAMS_MAX:
            raise BadRequest(f"{STREAMS_MAX} engines are followed already; unregister one")
        self._stop(key)
        stream = _Stream(instance, Following(self._context, endpoint, replay_endpoint, lambda event: heard(event)))

        def heard(event: Event) -> None:
            self._heard(stream, event)

        stream.task = asyncio.create_task(self._follow(stream))
        self._streams[key] = stream

    def unregister(self, tenant: str, name: str, rank: int | None) -> list[str]:
        """The streams that are not followed any more; all ranks for None."""
        gone = [key for key in self._streams if key[:2] == (tenant, name) and rank in (None, key[2])]
        for key in gone:
            self._stop(key)
        return ["|".join((name, tenant, str(key[2]))) for key in gone]

    def query(
        self, tenant: str, model: str, lora: str, salt: str, block_tokens: int, sequences: Sequence[int], name: str = ""
    ) -> dict[str, Standing]:
        """By engine, of those that serve such prompts; `name` asks for one."""
        found: dict[str, Standing] = {}
        for (of_tenant, of_name, rank), stream in self._streams.items():
            one = stream.instance
            fits = (of_tenant, one.model, one.salt, one.block_tokens) == (tenant, model, salt, block_tokens)
            if not fits or name not in ("", of_name):
                continue
            table = stream.tables.get(lora)
            matched = table.match(sequences) if table is not None else Matched()
            standing = found.setdefault(of_name, Standing(Matched(), {}))
            standing.ranks[rank] = matched.blocks
            _take_longest(standing.matched, matched)
        return found

    def counts(self) -> dict[str, int]:
        """Streams, and over all of them blocks, batches, gaps and batches that could not be read."""
        streams = list(self._streams.values())
        return {
            "streams": len(streams),
            "blocks": sum(len(table) for stream in streams for table in stream.tables.values()),
            "batches": sum(stream.following.batches for stream in streams),
            "gaps": sum(stream.following.gaps for stream in streams),
            "bad": sum(stream.following.bad for stream in streams),
        }

    async def close(self) -> None:
        tasks = [stream.task for stream in self._streams.values() if stream.task is not None]
        for key in list(self._streams):
            self._stop(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stop(self, key: tuple[str, str, int]) -> None:
        stream = self._streams.pop(key, None)
        if stream is not None and stream.task is not None:
            stream.task.cancel()

    async def _follow(self, stream: _Stream) -> None:
        try:
            await stream.following.run()
        except Exception:  # the top of the task: an endpoint that is none, among others
            log.exception("the KV events of %s are not followed any more", stream.instance.name)
            stream.tables.clear()

    def _heard(self, stream: _Stream, event: Event) -> None:
        if not isinstance(event, Stored):
            for known in stream.tables.values():
                known.apply(event)
            return
        lora = event.lora or stream.instance.lora
        table = stream.tables.get(lora)
        if table is None:
            if len(stream.tables) >= ADAPTERS_MAX:
                return
            table = stream.tables[lora] = PrefixTable(stream.instance.block_tokens, self.seed, 0)
        table.blocks_max = max(1, self._blocks_max // (len(self._streams) * len(stream.tables)))
        table.apply(event)


def _take_longest(most: Matched, other: Matched) -> None:
    """Over ranks: the longest prefix, and in each medium the most."""
    most.blocks = max(most.blocks, other.blocks)
    for medium, blocks in other.media.items():
        most.media[medium] = max(most.media.get(medium, 0), blocks)
