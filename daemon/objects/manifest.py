"""Where the bytes of a long object lie: its parts, each in chunks that are blocks of the hidden namespace. Pure.

    key of a chunk:            data (16 bytes), number (u32 BE), chunk (u32 BE)
    key of an upload's record: data
    key of a part's record:    data, part number (u16 BE)

`number` names one attempt to write one part: a part that is uploaded again does not touch what is there until it is whole.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

DATA_BYTES = 16
_CHUNK = struct.Struct(">II")
_PART = struct.Struct(">H")
UPLOAD_KEY_BYTES = DATA_BYTES
PART_KEY_BYTES = DATA_BYTES + _PART.size
ATTEMPT_BYTES = DATA_BYTES + 4
"""How much of a chunk's key names the attempt."""


class PartRow(msgspec.Struct, frozen=True, array_like=True):
    """One part of an object. All its chunks but the last have `chunk_bytes`."""

    part: int
    """As the client numbered it; 1 for an object that was put in one piece."""
    number: int
    size: int
    chunk_bytes: int
    etag: str = ""
    checksum: str = ""
    """base64, of the algorithm that the object has."""

    @property
    def chunks(self) -> int:
        return -(-self.size // self.chunk_bytes)


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """The payload of the block under a long object's key."""

    data: bytes
    parts: list[PartRow]

    @property
    def size(self) -> int:
        return sum(row.size for row in self.parts)

    def chunk_keys(self) -> Iterator[bytes]:
        """Of all that the object consists of, in order."""
        for row in self.parts:
            for chunk in range(row.chunks):
                yield chunk_key(self.data, row.number, chunk)

    def pieces(self, start: int, stop: int) -> Iterator["ChunkSpan"]:
        """What of which chunks makes up bytes [start, stop) of the object."""
        begin = 0
        for row in self.parts:
            end = begin + row.size
            if end > start and begin < stop:
                yield from _pieces_of(self.data, row, max(0, start - begin), min(row.size, stop - begin))
            begin = end

    def part_span(self, part: int) -> tuple[int, int] | None:
        """Where the `part`-th part (from 1) lies in the object."""
        if not 1 <= part <= len(self.parts):
            return None
        start = sum(row.size for row in self.parts[: part - 1])
        return start, start + self.parts[part - 1].size


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """Bytes [start, stop) of one chunk."""

    key: bytes
    start: int
    stop: int


def chunk_key(data: bytes, number: int, chunk: int) -> bytes:
    return data + _CHUNK.pack(number, chunk)


def part_key(data: bytes, part: int) -> bytes:
    return data + _PART.pack(part)


def part_of_key(key: bytes) -> int:
    """The part number in the key of a part's record."""
    (part,) = _PART.unpack_from(key, DATA_BYTES)
    return int(part)


def attempt(data: bytes, number: int) -> bytes:
    """What the keys of all chunks of one attempt begin with."""
    return chunk_key(data, number, 0)[:ATTEMPT_BYTES]


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.msgpack.encode(manifest)


def decode_manifest(payload: memoryview) -> Manifest:
    return msgspec.msgpack.decode(payload, type=Manifest)


def _pieces_of(data: bytes, row: PartRow, start: int, stop: int) -> Iterator[ChunkSpan]:
    """Of one part, [start, stop) counted from its own beginning."""
    position = start
    while position < stop:
        chunk, within = divmod(position, row.chunk_bytes)
        end = min(row.chunk_bytes, within + stop - position)
        yield ChunkSpan(chunk_key(data, row.number, chunk), within, end)
        position += end - within
