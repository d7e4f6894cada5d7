"""The Range header, for one range (RFC 9110, 14.2). Pure.

Anything else than one well-formed byte range is ignored, as the RFC allows: the answer is the whole then.
"""

import re
from typing import NamedTuple

from mooncask.errors import OutOfBounds

_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII | re.IGNORECASE)


class Span(NamedTuple):
    """Bytes [start, stop)."""

    start: int
    stop: int


def requested_span(header: str | None, key: str, size_bytes: int) -> Span | None:
    """What a Range header asks for of `size_bytes` bytes; None = all of it. Raises OutOfBounds when nothing of it is there."""
    found = _RANGE.fullmatch(header.strip()) if header else None
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        length = int(found[2])
        if length == 0 or size_bytes == 0:
            raise OutOfBounds(key, size_bytes, size_bytes, size_bytes)
        return Span(max(0, size_bytes - length), size_bytes)
    start = int(found[1])
    stop = int(found[2]) + 1 if found[2] else size_bytes
    if found[2] and stop <= start:
        return None
    if start >= size_bytes:
        raise OutOfBounds(key, start, stop, size_bytes)
    return Span(start, min(stop, size_bytes))
