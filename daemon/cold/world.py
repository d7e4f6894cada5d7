"""What the parts of the cold tier share: the bucket, what is known of it, how it does, and the node's own place in it."""

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from mooncask.daemon.cold.bucket import Bucket
from mooncask.daemon.cold.health import Health, Pace
from mooncask.daemon.cold.index import Block, ColdIndex, Pack, PackName
from mooncask.daemon.cold.index_object import NamespaceEntry
from mooncask.daemon.cold.names import Run
from mooncask.daemon.cold.sealing import Sealing
from mooncask.daemon.config import ColdSection
from mooncask.daemon.peers.shared import SharedNamespaces
from mooncask.daemon.service import Service

log = logging.getLogger(__name__)

SLICE = 1024
LEFT_MAX = 1 << 14
HIDDEN_MAX = 1 << 16
"""Blocks that were deleted here by name. Of other nodes' packs the longest ago are forgotten, and then found again."""
PATIENCE_SECONDS = 0.25
"""A read that had less time and did not end says nothing of the bucket."""


@dataclass(slots=True)
class World:
    """Of one daemon. Belongs to the event loop's thread."""

    service: Service
    section: ColdSection
    bucket: Bucket
    sealing: Sealing
    run: Run
    index: ColdIndex
    shared: SharedNamespaces
    health: Health = field(default_factory=Health)
    pace: Pace = field(default_factory=Pace)
    owned: set[str] = field(default_factory=set)
    """Nodes whose packs this one looks after: itself, and dead ones that it has claimed."""
    files: dict[str, "IndexFile"] = field(default_factory=dict)
    """Index objects that were read, by path."""
    writing: set[PackName] = field(default_factory=set)
    """Packs of this run that are on their way."""
    reading: set[PackName] = field(default_factory=set)
    """Packs whose blocks are being taken into the index."""
    packing: set[tuple[bytes, bytes]] = field(default_factory=set)
    """Blocks that are gathered into packs now."""
    dead_blocks: dict[PackName, set[tuple[bytes, bytes]]] = field(default_factory=dict)
    """Blocks of owned packs that are dead, and that their index object still names."""
    hidden: OrderedDict[tuple[bytes, bytes], None] = field(default_factory=OrderedDict)
    left: OrderedDict[tuple[bytes, bytes], float] = field(default_factory=OrderedDict)
    """Blocks that were in the bucket until then, by the wall clock: for people."""
    namespaces: dict[bytes, NamespaceEntry] = field(default_factory=dict)
    """Of blocks in the bucket, as index objects tell."""
    next_number: int = 0
    why_unreadable: str = ""
    """Of an index object of the last look that could not be read."""

    @property
    def counters(self) -> Counter[str]:
        return self.service.counters

    def take_number(self) -> int:
        """For a pack or an index object of this run."""
        self.next_number += 1
        return self.next_number

    def usable(self) -> bool:
        return self.health.usable(time.monotonic())

    def worked(self) -> None:
        if self.health.down_since:
            log.info("the bucket answers again")
        self.health.worked()

    def failed(self, what: str, why: object) -> None:
        """Counted always; logged when the bucket goes down, not with every request that it lets down."""
        self.counters["cold_failures"] += 1
        if self.health.failed(f"{what}: {why}", time.monotonic(), time.time()):
            log.warning("the bucket %s is not usable: %s: %s", self.section.bucket, what, why)

    async def take_in(self, pack: Pack, blocks: Iterator[Block]) -> None:
        """Into the index, some at a time: a pack may have tens of thousands."""
        self.reading.add(pack.name)
        try:
            self.index.begin(pack)
            while some := list(islice(blocks, SLICE)):
                self.index.extend(pack.name, some)
                await asyncio.sleep(0)
        finally:
            self.reading.discard(pack.name)

    def may_have(self, ns_id: bytes, key: bytes) -> bool:
        return self.index.has(ns_id, key) and (ns_id, key) not in self.hidden

    def drop(self, name: PackName) -> bool:
        """See `ColdIndex.drop`."""
        pack = self.index.pack(name)
        again = self.index.drop(name)
        names = ((ns_id, key) for ns_id, keys in (pack.blocks.items() if pack is not None else ()) for key in keys)
        for one in islice((one for one in names if not self.index.has(*one)), LEFT_MAX):
            self.left.pop(one, None)
            self.left[one] = time.time()
        while len(self.left) > LEFT_MAX:
            self.left.popitem(last=False)
        return again

    def forget(self, ns_id: bytes, key: bytes) -> Pack | None:
        """The block is of no use there; an owned pack loses it for good. The pack."""
        pack = self.index.forget(ns_id, key)
        if pack is not None and pack.node in self.owned:
            self.dead_blocks.setdefault(pack.name, set()).add((ns_id, key))
        return pack

    def hide(self, ns_id: bytes, key: bytes) -> None:
        """Deleted here by name: dead where the pack is ours to change, and in any case not to be found by this node."""
        if self.forget(ns_id, key) is None and (ns_id, key) not in self.packing:
            return
        self.hidden[(ns_id, key)] = None
        if len(self.hidden) > HIDDEN_MAX:
            self.hidden.popitem(last=False)


@dataclass(frozen=True, slots=True)
class IndexFile:
    """An index object that was read. Without packs: one that could not be."""

    size: int
    packs: tuple[PackName, ...] = ()
