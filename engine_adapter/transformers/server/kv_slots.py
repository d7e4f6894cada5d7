"""Room for the KV of several answers at a time, and the cache through which one forward pass feeds all of them.

One tensor [layers, 2, slots, kv heads, capacity, head_dim] is made at the start. A slot belongs to one answer from its
admission until its blocks are written back; a new token goes to its row's own position, so nothing is concatenated and
rows of unlike lengths are one batch. Not here: who gets a slot (`decode_engine.py`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mooncask.engine_adapter.transformers.kv_layout import KvBuffer, KvLayout


class KvSlots:
    """`capacity_tokens` of KV in each of `slots` slots. Different slots may be used from different threads."""

    def __init__(self, layout: KvLayout, slots: int, capacity_tokens: int, device: str = "cpu") -> None:
        self.layout, self.slots, self.capacity_tokens = layout, slots, capacity_tokens
        shape = (layout.layers, 2, slots, layout.kv_heads, capacity_tokens, layout.head_dim)
        self.storage = torch.empty(shape, dtype=layout.torch_dtype, device=device).fill_(0)  # touches every page

    def buffer(self, slot: int) -> KvBuffer:
        """One slot as the buffer of a single request: the same memory."""
        return KvBuffer(self.layout, self.capacity_tokens, storage=self.storage[:, :, slot])


class Rows:
    """The rows of one pass: slots 0 to the highest that is used, of which `active` have a token to add at `lengths`.

    The others are computed and thrown away; nothing is written for them, for their slots may be in somebody else's hands.
    """

    def __init__(self, active: Sequence[int], lengths: Sequence[int], device: str) -> None:
        self.count = max(active) + 1
        self.width = max(lengths) + 1
        self.active = torch.tensor(active, device=device)
        self.lengths = torch.tensor(lengths, device=device)
        self.positions = torch.zeros(self.count, dtype=torch.long, device=device)
        self.positions[self.active] = self.lengths

    def mask(self) -> torch.Tensor:
        """Bool [count, 1, 1, width]: each row sees its own tokens, the one that is added included."""
        seen = torch.arange(self.width, device=self.positions.device)[None, :] <= self.positions[:, None]
        return seen[:, None, None, :]


class _RowsLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no annotations
    """One layer of all rows."""

    def __init__(self, room: torch.Tensor, rows: Rows) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._room, self._rows = room, rows
        self.keys, self.values = self._shown(rows.width - 1)
        self.dtype, self.device = room.dtype, room.device
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the room is there from the start."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self._rows
        self._room[0][rows.active, :, rows.lengths] = key_states[rows.active, :, 0]
        self._room[1][rows.active, :, rows.lengths] = value_states[rows.active, :, 0]
        self.keys, self.values = self._shown(rows.width)
        return self.keys, self.values

    def _shown(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._room[:, : self._rows.count, :, :tokens]
        return keys, values


def rows_cache(slots: KvSlots, rows: Rows) -> DynamicCache:
    """The cache of one pass over `rows`, each of which gets one token."""
    cache = DynamicCache()
    cache.layers.extend(_RowsLayer(slots.storage[layer], rows) for layer in range(slots.layout.layers))
    cache.layer_class_to_replicate = None
    return cache
