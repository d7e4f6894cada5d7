"""What copying costs without a store: between private memory, into shared memory and out of it.

Private memory of this size has huge pages where the kernel grants them, shared memory as the arena's has small ones: that
is most of the difference between these.
"""

import mmap
import os
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mooncask.tools.bench.samples import timed

Bytes = NDArray[np.uint8]

PAGE_BYTES = 4096
COPY = "memcpy"
COPY_SHARED = "memcpy into shared memory"
COPY_OUT = "memcpy out of shared memory"


def private_memory(size_bytes: int, seed: int = 0) -> Bytes:
    """Touched private memory of whole pages, no two of which are equal: random bytes behind the page's number."""
    assert size_bytes % PAGE_BYTES == 0, size_bytes
    pages = np.empty((size_bytes // PAGE_BYTES, PAGE_BYTES), np.uint8)
    pattern = np.random.default_rng(seed).integers(0, 256, (256, PAGE_BYTES), np.uint8)
    for start in range(0, len(pages), len(pattern)):
        np.copyto(pages[start : start + len(pattern)], pattern[: len(pages) - start])
    pages[:, :8] = np.arange(len(pages), dtype="<u8").view(np.uint8).reshape(-1, 8)
    return pages.reshape(-1)


def shared_memory(size_bytes: int) -> Bytes:
    """Touched pages of a memfd, as the arena has them; they go with the last view."""
    descriptor = os.memfd_create("mooncask-bench")
    try:
        os.ftruncate(descriptor, size_bytes)
        memory = np.frombuffer(mmap.mmap(descriptor, size_bytes), np.uint8)
    finally:
        os.close(descriptor)
    memory[:: mmap.PAGESIZE] = 1
    return memory


def blocks_of(memory: Bytes, block_bytes: int, batch: int, i: int) -> list[Bytes]:
    """The blocks of batch i, which walks over `memory` and starts again at its end."""
    batches = memory.size // (block_bytes * batch)
    start = i % batches * block_bytes * batch
    return [memory[start + j * block_bytes : start + (j + 1) * block_bytes] for j in range(batch)]


def copy_batch(targets: list[Bytes], sources: list[Bytes]) -> None:
    for target, source in zip(targets, sources, strict=True):
        np.copyto(target, source)


class Copies:
    """Copies batches between plain memory: each method walks over its source and its target.

    They walk a quarter, half and three quarters ahead of round i: what another runner touched in the same round is in the
    processor's cache, and copying that would flatter the limit.
    """

    def __init__(self, source: Bytes, private: Bytes, shared: Bytes, block_bytes: int, batch: int) -> None:
        self._source, self._private, self._shared = source, private, shared
        self._shape = (block_bytes, batch)
        self._batches = source.size // (block_bytes * batch)

    def private(self, i: int) -> Mapping[str, float]:
        return {COPY: self._copy(self._private, self._source, i + self._batches // 2)}

    def into_shared(self, i: int) -> Mapping[str, float]:
        return {COPY_SHARED: self._copy(self._shared, self._source, i + self._batches // 4)}

    def out_of_shared(self, i: int) -> Mapping[str, float]:
        return {COPY_OUT: self._copy(self._private, self._shared, i + self._batches * 3 // 4)}

    def _copy(self, target: Bytes, source: Bytes, i: int) -> float:
        sources, targets = blocks_of(source, *self._shape, i), blocks_of(target, *self._shape, i)
        with timed() as watch:
            copy_batch(targets, sources)
        return watch.seconds
