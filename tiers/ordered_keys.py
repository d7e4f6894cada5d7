"""A sorted set of integers with cheap insertion, removal and "first at or above". It knows nothing of memory."""

from bisect import bisect_left, insort

_CHUNK_MAX = 512
"""Splitting above this keeps the memory move of one insertion under 4 KiB; below it bisection dominates anyway."""


class OrderedKeys:
    """Distinct integers in ascending order, held in sorted chunks of at most 512.

    Each call bisects twice and moves at most one chunk, plus one entry a chunk in the directory of chunks. Not safe for
    concurrent use.
    """

    def __init__(self) -> None:
        self._chunks: list[list[int]] = []
        self._lasts: list[int] = []

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def add(self, key: int) -> None:
        """Insert `key`, which must not be there."""
        if not self._chunks:
            self._chunks.append([key])
            self._lasts.append(key)
            return
        index = min(bisect_left(self._lasts, key), len(self._lasts) - 1)
        chunk = self._chunks[index]
        insort(chunk, key)
        self._lasts[index] = chunk[-1]
        if len(chunk) > _CHUNK_MAX:
            self._split(index)

    def remove(self, key: int) -> None:
        """Take `key` out; it must be there."""
        index = bisect_left(self._lasts, key)
        assert index < len(self._chunks), f"{key} is not in the set"
        chunk = self._chunks[index]
        position = bisect_left(chunk, key)
        assert chunk[position] == key, f"{key} is not in the set"
        del chunk[position]
        if not chunk:
            del self._chunks[index], self._lasts[index]
            return
        self._lasts[index] = chunk[-1]
        if len(chunk) < _CHUNK_MAX // 8:
            self._join_with_next(index)

    def first_at_least(self, key: int) -> int | None:
        """The smallest member that is not below `key`."""
        index = bisect_left(self._lasts, key)
        if index == len(self._chunks):
            return None
        chunk = self._chunks[index]
        return chunk[bisect_left(chunk, key)]

    def last(self) -> int | None:
        """The largest member."""
        return self._lasts[-1] if self._lasts else None

    def _split(self, index: int) -> None:
        chunk = self._chunks[index]
        half = len(chunk) // 2
        self._chunks.insert(index, chunk[:half])
        self._lasts.insert(index, chunk[half - 1])
        del chunk[:half]

    def _join_with_next(self, index: int) -> None:
        if index + 1 == len(self._chunks):
            return
        if len(self._chunks[index]) + len(self._chunks[index + 1]) > _CHUNK_MAX // 2:
            return
        self._chunks[index].extend(self._chunks.pop(index + 1))
        del self._lasts[index]
