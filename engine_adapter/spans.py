"""Memory that an engine owns, as (address, bytes) pieces, and copies between it and one block's bytes.

An engine's page is seldom in one piece: K here and V there, or a pair for every layer. A block is its pieces one after
the other. Whoever makes spans keeps the memory alive while they are used; nothing here looks at what is behind them.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mooncask.client.byte_views import flat_bytes


class Span(NamedTuple):
    """`size` bytes at `address`."""

    address: int
    size: int


Spans = Sequence[Span]


def span_of(buffer: Any, *, writable: bool = False) -> Span:
    """A contiguous array, buffer or CPU tensor as one piece. Raises BadRequest for what is none of these."""
    array = flat_bytes(buffer, writable=writable)
    return Span(address_of(array), array.nbytes)


def address_of(array: npt.NDArray[np.uint8]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def total(spans: Spans) -> int:
    """Bytes of all pieces."""
    return sum(span.size for span in spans)


def joined(spans: Spans) -> list[Span]:
    """The same bytes in the same order with neighbours made one piece: fewer copies."""
    found: list[Span] = []
    for span in spans:
        if found and found[-1].address + found[-1].size == span.address:
            found[-1] = Span(found[-1].address, found[-1].size + span.size)
        else:
            found.append(span)
    return found


def gather(spans: Spans, target: npt.NDArray[np.uint8]) -> None:
    """Copies the pieces into `target`, which is exactly as long. Releases the GIL while it copies."""
    assert total(spans) == target.nbytes
    address = address_of(target)
    for span in spans:
        ctypes.memmove(address, span.address, span.size)
        address += span.size


def scatter(source: npt.NDArray[np.uint8], spans: Spans) -> None:
    """Copies `source`, which is exactly as long, to the pieces. Releases the GIL while it copies."""
    assert total(spans) == source.nbytes
    address = address_of(source)
    for span in spans:
        ctypes.memmove(span.address, address, span.size)
        address += span.size
