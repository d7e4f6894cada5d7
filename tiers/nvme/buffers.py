"""Memory that O_DIRECT accepts: 4 KiB-aligned, in multiples of 4 KiB. Nothing here does I/O."""

import mmap

import numpy as np

from mooncask.tiers.block import ALIGNMENT, aligned
from mooncask.tiers.nvme.record import HEADER_BYTES

_POOL_STEP = 32


def aligned_buffer(size_bytes: int) -> memoryview:
    """Fresh zeroed memory of `aligned(size_bytes)` bytes; it lives as long as the view."""
    return memoryview(mmap.mmap(-1, aligned(size_bytes)))


def is_aligned(view: memoryview) -> bool:
    """Whether the view's memory begins at a multiple of ALIGNMENT."""
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0] if len(view) else 0
    return address % ALIGNMENT == 0


def copy_bytes(target: memoryview, source: memoryview) -> None:
    """Copy equal lengths. numpy releases the GIL in it; slice assignment of views would not."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


class PagePool:
    """Hands out aligned buffers of HEADER_BYTES; grows with the number in use at a time. For one thread."""

    def __init__(self) -> None:
        self._free: list[memoryview] = []

    def take(self) -> memoryview:
        if not self._free:
            step = aligned_buffer(_POOL_STEP * HEADER_BYTES)
            self._free = [step[i : i + HEADER_BYTES] for i in range(0, len(step), HEADER_BYTES)]
        return self._free.pop()

    def give(self, page: memoryview) -> None:
        self._free.append(page)


def pieces_to_write(header: memoryview, payload: memoryview, size: int, spare: memoryview) -> list[memoryview]:
    """The buffers of one pwritev: header, payload, zero pad up to the next 4 KiB.

    `payload` holds `size` bytes or, padded, `aligned(size)`. `spare` (HEADER_BYTES) takes the last bytes of a payload
    that is not padded; a payload whose memory is not aligned is copied as a whole.
    """
    payload = payload.cast("B") if payload.format != "B" else payload
    padded = aligned(size)
    if not is_aligned(payload):
        bounce = aligned_buffer(padded)
        copy_bytes(bounce[:size], payload[:size])
        return [header, bounce]
    if len(payload) >= padded:
        return [header, payload[:padded]]
    whole = size // ALIGNMENT * ALIGNMENT
    spare[:] = bytes(len(spare))
    spare[: size - whole] = payload[whole:size]
    return [header, payload[:whole], spare] if whole else [header, spare]


class ReadTarget:
    """The buffers of one preadv that brings header and payload, and where the payload ends up."""

    def __init__(self, header: memoryview, into: memoryview, size: int, spare: memoryview) -> None:
        into = into.cast("B") if into.format != "B" else into
        padded = aligned(size)
        self._into, self._size, self._spare = into, size, spare
        self._whole = size // ALIGNMENT * ALIGNMENT
        self._bounce: memoryview | None = None
        if not is_aligned(into):
            self._bounce = aligned_buffer(padded)
            self.pieces = [header, self._bounce]
        elif len(into) >= padded:
            self._whole = size
            self.pieces = [header, into[:padded]]
        else:
            self.pieces = [header, into[: self._whole], spare] if self._whole else [header, spare]

    def settle(self) -> memoryview:
        """Bring what was read beside `into` to its place; returns the payload, `size` bytes."""
        payload = self._into[: self._size]
        if self._bounce is not None:
            copy_bytes(payload, self._bounce[: self._size])
        elif self._whole < self._size:
            payload[self._whole :] = self._spare[: self._size - self._whole]
        return payload
