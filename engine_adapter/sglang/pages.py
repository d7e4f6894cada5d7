"""A host pool of SGLang as the pages of it that a block holds, by SGLang's own methods; knows no layout by itself.

Two forms of the same page differ in the order of their bytes: `pieces` is what the pool names for zero-copy I/O, read and
written where it lies; `flat` is what the pool copies out as one tensor, for pools and layouts without the former.
"""

from collections.abc import Callable, Sequence
from typing import Any

from mooncask.engine_adapter.spans import Span, Spans, joined, span_of

PIECES, FLAT = "pieces", "flat"


class HostPages:
    """One registered pool. As thread-safe as the pool: SGLang owns the pages that it names in a call until that returns."""

    def __init__(self, pool: Any, form: str = "") -> None:
        """`form` is chosen by what the pool can do, unless it is given."""
        self.pool = pool
        self.page_tokens: int = getattr(pool, "logical_page_size", None) or getattr(pool, "page_size", 1) or 1
        self.form = form or (PIECES if _has_pieces(pool) else FLAT)

    @property
    def logical(self) -> bool:
        """Whether it only counts pages whose bytes are in other pools."""
        return getattr(self.pool, "kv_buffer", self) is None

    def fits(self, pages: int, indices: Any) -> bool:
        return indices is not None and len(indices) == pages * self.page_tokens

    def sources(self, pages: int, indices: Any) -> tuple[list[Spans], Any]:
        """Where the pages' bytes are, and what keeps them there."""
        if self.form == PIECES:
            return self._pieces(pages, indices), self.pool
        tensors = [self.pool.get_data_page(start, flat=True).contiguous() for start in self._starts(pages, indices)]
        return [[span_of(tensor)] for tensor in tensors], tensors

    def targets(self, pages: int, indices: Any) -> tuple[list[Spans], Callable[[Sequence[bool]], None]]:
        """Where the pages' bytes are to go, and what to call with which of them came."""
        if self.form == PIECES:
            return self._pieces(pages, indices), lambda loaded: None
        tensors = [self.pool.get_dummy_flat_data_page() for _ in range(pages)]
        starts = self._starts(pages, indices)

        def settle(loaded: Sequence[bool]) -> None:
            for start, tensor, came in zip(starts, tensors, loaded, strict=True):
                if came:
                    self.pool.set_from_flat_data_page(start, tensor)

        return [[span_of(tensor, writable=True)] for tensor in tensors], settle

    def _pieces(self, pages: int, indices: Any) -> list[Spans]:
        addresses, sizes = self.pool.get_page_buffer_meta(indices)
        each = len(addresses) // pages
        spans = [Span(address, size) for address, size in zip(addresses, sizes, strict=True)]
        return [joined(spans[i * each : (i + 1) * each]) for i in range(pages)]

    def _starts(self, pages: int, indices: Any) -> list[int]:
        return [int(indices[i * self.page_tokens]) for i in range(pages)]


def _has_pieces(pool: Any) -> bool:
    """Tries it on the first page: pools refuse layouts that they have no addresses for."""
    import torch

    describe = getattr(pool, "get_page_buffer_meta", None)
    if describe is None:
        return False
    try:
        found = describe(torch.arange(getattr(pool, "logical_page_size", None) or pool.page_size))
    except (ValueError, NotImplementedError):
        return False
    return bool(found) and len(found[0]) > 0
