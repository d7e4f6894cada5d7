"""The namespaces that blocks belong to, in a file of their own: a rebuild of the index needs them.

    NAMESPACES: magic (8), version u16, dropped u32, count u32, highest id u32,
                dropped x (id u32, horizon u64), count x (id u32, length u32, blob), xxh3_128 of all before (16)

A namespace that was dropped is remembered until no segment is left that can hold its blocks (`horizon`, as a
tombstone's), so that a rebuild brings none of them back. Little endian; replaced as a whole.
"""

import struct
from dataclasses import dataclass, field

import xxhash

from mooncask.tiers.nvme.record import FORMAT_VERSION

NAMESPACES = "NAMESPACES"
_MAGIC = b"MCASKNSP"
_HEAD = struct.Struct("<8sHIII")
_DROPPED = struct.Struct("<IQ")
_ENTRY = struct.Struct("<II")
_DIGEST_BYTES = 16


class NamespacesUnreadable(Exception):
    """The file's checksum or magic is wrong."""


@dataclass(slots=True)
class NamespaceTable:
    """Who is there, who was dropped. Pure data: the tier reads and writes the file."""

    blobs: dict[int, bytes] = field(default_factory=dict)
    dropped: dict[int, int] = field(default_factory=dict)
    """id -> highest segment generation that can hold its blocks."""
    highest: int = 0

    def save(self, number: int, blob: bytes) -> None:
        self.blobs[number] = blob
        self.dropped.pop(number, None)
        self.highest = max(self.highest, number)

    def drop(self, number: int, horizon: int) -> None:
        self.blobs.pop(number, None)
        self.dropped[number] = horizon
        self.highest = max(self.highest, number)

    def purge(self, oldest_generation: int) -> None:
        """Forget dropped ones when every segment that held their blocks was reclaimed."""
        self.dropped = {number: horizon for number, horizon in self.dropped.items() if horizon >= oldest_generation}

    def pack(self) -> bytes:
        head = _HEAD.pack(_MAGIC, FORMAT_VERSION, len(self.dropped), len(self.blobs), self.highest)
        dropped = b"".join(_DROPPED.pack(*item) for item in self.dropped.items())
        entries = b"".join(_ENTRY.pack(number, len(blob)) + blob for number, blob in self.blobs.items())
        body = head + dropped + entries
        return body + xxhash.xxh3_128_digest(body)

    @classmethod
    def unpack(cls, content: bytes) -> "NamespaceTable":
        """Raises NamespacesUnreadable."""
        body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
        if len(body) < _HEAD.size or xxhash.xxh3_128_digest(body) != digest:
            raise NamespacesUnreadable("wrong checksum")
        magic, version, dropped, count, highest = _HEAD.unpack_from(body)
        if magic != _MAGIC or version != FORMAT_VERSION:
            raise NamespacesUnreadable("wrong magic or version")
        table, position = cls(highest=highest), _HEAD.size
        for _ in range(dropped):
            number, horizon = _DROPPED.unpack_from(body, position)
            table.dropped[number] = horizon
            position += _DROPPED.size
        for _ in range(count):
            number, length = _ENTRY.unpack_from(body, position)
            position += _ENTRY.size
            table.blobs[number] = body[position : position + length]
            position += length
        return table
