"""Puts a pack's bytes together, and says what an index object has of it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mooncask.daemon.cold.index import Block, Pack, PackName
from mooncask.daemon.cold.index_object import NamespaceEntry, PackEntry, column
from mooncask.daemon.cold.pack import (
    HEADER_BYTES,
    PACK_MAGIC,
    BlockFacts,
    ObjectHeader,
    encode_header,
    encode_record,
    identity_of,
)
from mooncask.daemon.cold.sealing import Piece, Sealing
from mooncask.tiers.namespace import NamespaceSpec


@dataclass(slots=True)
class PackBuilder:
    """The bytes of one pack. Only one thread at a time."""

    name: PackName
    sealing: Sealing
    size_max: int
    size: int = HEADER_BYTES
    blocks: list[Block] = field(default_factory=list)
    _pieces: deque[Piece] = field(default_factory=deque)

    def fits(self, size_bytes: int) -> bool:
        return self.size + size_bytes <= self.size_max

    def add(self, facts: BlockFacts, payload: memoryview) -> None:
        identity = identity_of(PACK_MAGIC, *self.name)
        pieces = encode_record(facts, payload, self.sealing, identity, self.size)
        self._pieces.extend(pieces)
        length = sum(len(piece) for piece in pieces)
        self.blocks.append(Block(facts.ns_id, facts.key, self.size, length))
        self.size += length

    def finish(self) -> memoryview:
        """The whole object. Copied by numpy, which lets the event loop's thread go on."""
        header = ObjectHeader(
            PACK_MAGIC, self.name.incarnation, self.name.number, len(self.blocks), self.sealing.key_id
        )
        whole, offset = np.empty(self.size, np.uint8), 0
        self._pieces.appendleft(encode_header(header))
        while self._pieces:  # each goes as soon as it is copied: there is never much more than one pack in memory
            piece = self._pieces.popleft()
            np.copyto(whole[offset : offset + len(piece)], np.frombuffer(piece, np.uint8))
            offset += len(piece)
        return whole.data

    def entry(self, node: str, created: int, ns_ids: Sequence[bytes]) -> PackEntry:
        return pack_entry(Pack(self.name, node, self.size, created, self.sealing.key_id), self.blocks, ns_ids)


def pack_entry(pack: Pack, blocks: Sequence[Block], ns_ids: Sequence[bytes]) -> PackEntry:
    """`ns_ids`: the namespaces of the index object that it will be in, in order."""
    owners = {ns_id: number for number, ns_id in enumerate(ns_ids)}
    return PackEntry(
        pack.name.incarnation,
        pack.name.number,
        pack.node,
        pack.size,
        pack.created,
        pack.key_id,
        [block.key for block in blocks],
        column([owners[block.ns_id] for block in blocks]),
        column([block.offset for block in blocks]),
        column([block.length for block in blocks]),
    )


def namespace_entry(ns_id: bytes, spec: NamespaceSpec) -> NamespaceEntry:
    return NamespaceEntry(ns_id, spec.name, dict(spec.family), spec.shard, spec.tenant, spec.fingerprint)
