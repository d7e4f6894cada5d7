"""The aws-chunked framing of a body, taken apart without copying: pure, bytes in and views of them out.

    <hex size>[;chunk-signature=<hex>]\\r\\n <bytes> \\r\\n ... 0[;chunk-signature=<hex>]\\r\\n [<trailer>: <value>\\r\\n ...] \\r\\n

It is a content coding inside of HTTP's own framing, which aiohttp has taken off before. What the signatures say is checked
in `signature_chunks.py`; what the trailers say, in `body_promises.py`.
"""

from dataclasses import dataclass
from enum import Enum

LINE_BYTES_MAX = 256
"""A chunk's header with a signature has 101."""
TRAILER_BYTES_MAX = 8 << 10
TRAILER_SIGNATURE = "x-amz-trailer-signature"
_SIGNATURE = b"chunk-signature="


class BadFraming(ValueError):
    """The text says what is wrong."""


class ShortBody(ValueError):
    """The body ended before its last chunk did."""


@dataclass(frozen=True, slots=True)
class ChunkEnd:
    """All bytes of a chunk were given out. `signature` is empty where its header had none; the last chunk is empty."""

    signature: str


class _Part(Enum):
    HEADER = 1
    BYTES = 2
    BREAK = 3
    TRAILERS = 4


class ChunkedDecoder:
    """Takes one body apart. No chunk may go past the announced `size_bytes`, so chunks need no other limit."""

    def __init__(self, size_bytes: int) -> None:
        self._part = _Part.HEADER
        self._line = bytearray()
        self._signature = ""
        self._chunk_left = 0
        self._left = size_bytes

    def feed(self, data: bytes) -> list[memoryview | ChunkEnd]:
        """What `data` holds, as views of it, and the ends of chunks between them. Raises BadFraming."""
        found: list[memoryview | ChunkEnd] = []
        view = memoryview(data)
        at = 0
        while at < len(data):
            if self._part is _Part.BYTES:
                stop = min(len(data), at + self._chunk_left)
                found.append(view[at:stop])
                self._took(stop - at, found)
                at = stop
            elif self._part is _Part.TRAILERS:
                self._line += view[at:]
                if len(self._line) > TRAILER_BYTES_MAX:
                    raise BadFraming(f"trailers of more than {TRAILER_BYTES_MAX} bytes")
                break
            else:
                at = self._read_line(data, at, found)
        return found

    def finish(self) -> dict[str, str]:
        """The trailers by lower-case name, at the body's end. Raises BadFraming and ShortBody."""
        if self._part is not _Part.TRAILERS:
            raise ShortBody("the body ends before its last chunk")
        if self._left:
            raise ShortBody(f"the last chunk comes {self._left} bytes before x-amz-decoded-content-length")
        if self._line and not self._line.endswith(b"\n"):
            raise ShortBody("the body ends within its trailers")
        return _trailers(bytes(self._line))

    def _took(self, count: int, found: list[memoryview | ChunkEnd]) -> None:
        self._chunk_left -= count
        self._left -= count
        if not self._chunk_left:
            found.append(ChunkEnd(self._signature))
            self._part = _Part.BREAK

    def _read_line(self, data: bytes, at: int, found: list[memoryview | ChunkEnd]) -> int:
        """The line that starts in what is kept and goes on at `at`; returns where the next thing begins."""
        end = data.find(b"\n", at, at + LINE_BYTES_MAX)
        stop = end + 1 if end >= 0 else min(len(data), at + LINE_BYTES_MAX)
        self._line += data[at:stop]
        if len(self._line) > LINE_BYTES_MAX or (end < 0 and stop < len(data)):
            raise BadFraming(f"a chunk's header of more than {LINE_BYTES_MAX} bytes")
        if end >= 0:
            line = bytes(self._line)
            self._line.clear()
            self._end_of_line(line, found)
        return stop

    def _end_of_line(self, line: bytes, found: list[memoryview | ChunkEnd]) -> None:
        if not line.endswith(b"\r\n"):
            raise BadFraming("a line of the framing does not end in CR LF")
        if self._part is _Part.BREAK:
            if line != b"\r\n":
                raise BadFraming("a chunk has more bytes than its header says")
            self._part = _Part.HEADER
            return
        self._chunk_left, self._signature = _header(line[:-2])
        if self._chunk_left > self._left:
            raise BadFraming("the chunks have more bytes than x-amz-decoded-content-length says")
        self._part = _Part.BYTES
        if not self._chunk_left:
            found.append(ChunkEnd(self._signature))
            self._part = _Part.TRAILERS


def _header(line: bytes) -> tuple[int, str]:
    digits, separator, extension = line.partition(b";")
    if not 1 <= len(digits) <= 16 or digits.strip(b"0123456789abcdefABCDEF"):
        raise BadFraming("a chunk's size is not hex")
    if not separator:
        return int(digits, 16), ""
    signature = extension.removeprefix(_SIGNATURE)
    if signature == extension or len(signature) != 64 or signature.strip(b"0123456789abcdef"):
        raise BadFraming("a chunk's extension is not chunk-signature=<64 hex digits>")
    return int(digits, 16), signature.decode()


def _trailers(lines: bytes) -> dict[str, str]:
    """Blank lines mean nothing: some signers put one before the trailers' signature, and all put one at the end."""
    found: dict[str, str] = {}
    for line in lines.split(b"\n"):
        text = line.rstrip(b"\r").decode("latin-1")
        if not text:
            continue
        name, colon, value = text.partition(":")
        if not colon or not name or name != name.strip() or name.lower() in found:
            raise BadFraming("a trailer is not <name>:<value>, or comes twice")
        found[name.lower()] = value.strip()
    return found
