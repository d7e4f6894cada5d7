"""The bytes of a block, and the buffer that holds one request's KV so that blocks go in and out by one copy each.

A block is layer-major, contiguous, in the machine's (little endian) byte order:

    [layer][0 = K, 1 = V][kv head][token of the block][head dimension]

K is stored after rotary embedding, so a block is valid at its own positions only; the prefix hash sees to that. Layers
with a sliding window are in it like all others, with every token: what the model keeps of them is the last window - 1 tokens,
which is a view of the same buffer, wherever the prefix was loaded up to. Not here: keys, the store, which models may use
this layout (`model.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from mooncask.errors import UnsupportedModel

LAYOUT = "layer-major [layer, k/v, head, token, dim] 1"
"""Part of the family: KV of another layout is never taken for ours."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The shape of a model's KV and of its blocks."""

    layers: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    dtype: str
    windows: tuple[int, ...] = ()
    """Each layer's sliding window in tokens, 0 for full attention; empty: all are full."""

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        return (self.layers, 2, self.kv_heads, self.block_tokens, self.head_dim)

    @property
    def token_bytes(self) -> int:
        return self.layers * 2 * self.kv_heads * self.head_dim * self.torch_dtype.itemsize

    @property
    def block_bytes(self) -> int:
        return self.token_bytes * self.block_tokens


class KvBuffer:
    """The KV of one request: tokens [0, capacity) of all layers in one tensor [layers, 2, kv heads, capacity, head_dim].

    A worker keeps one and uses it for request after request: touching fresh memory for the first time costs more than
    copying a prefix into it. Not safe for concurrent use.
    """

    def __init__(
        self, layout: KvLayout, capacity_tokens: int, device: str = "cpu", storage: torch.Tensor | None = None
    ) -> None:
        """`storage`: memory of that shape which belongs to somebody else."""
        self.layout = layout
        self.capacity_tokens = capacity_tokens
        shape = (layout.layers, 2, layout.kv_heads, capacity_tokens, layout.head_dim)
        if storage is None:
            storage = torch.empty(shape, dtype=layout.torch_dtype, device=device).fill_(0)  # touches every page
        assert storage.shape == shape
        self.storage = storage

    def load_block(self, index: int, block: torch.Tensor) -> None:
        """Copies a block, a tensor of `layout.block_shape` over its bytes, to tokens [index * block_tokens, ...)."""
        self._tokens(index).copy_(block)

    def save_block(self, index: int, block: torch.Tensor) -> None:
        """Copies block `index` out, all layers at once."""
        block.copy_(self._tokens(index))

    def save_layer(self, layer: int, index: int, block: torch.Tensor) -> None:
        """Copies one layer's part of block `index` to its place in the block."""
        block[layer].copy_(self._tokens(index)[layer])

    def _tokens(self, index: int) -> torch.Tensor:
        start = index * self.layout.block_tokens
        if start + self.layout.block_tokens > self.capacity_tokens:
            raise ValueError(f"block {index} ends after token {self.capacity_tokens}, the buffer's last")
        return self.storage[:, :, :, start : start + self.layout.block_tokens]


class BufferLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no annotations
    """One layer's cache that grows inside a KvBuffer instead of being concatenated anew for every token.

    `written(layer)` is called as soon as a pass has appended this layer's K and V, which is when they may be stored.
    """

    def __init__(self, buffer: KvBuffer, layer: int, filled_tokens: int, written: Callable[[int], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._room = buffer.storage[layer]
        self._layer, self._written = layer, written
        self._show(filled_tokens)
        self.dtype, self.device = self._room.dtype, self._room.device
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the buffer is there from the start."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start = self.get_seq_length()
        stop = start + key_states.shape[-2]
        if stop > self._room.shape[-2]:
            raise ValueError(f"{stop} tokens do not fit in a buffer of {self._room.shape[-2]}")
        self._room[0, :, start:stop] = key_states[0]
        self._room[1, :, start:stop] = value_states[0]
        shown = self._show(stop)
        self._written(self._layer)
        return shown

    def _show(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Makes keys and values views of the first `tokens` tokens: [1, kv heads, tokens, head_dim]."""
        keys, values = self._room[0, None, :, :tokens], self._room[1, None, :, :tokens]
        self.keys, self.values = keys, values
        return keys, values


class SlidingBufferLayer(BufferLayer):  # type: ignore[no-untyped-call]  # as above
    """The same for a layer whose tokens see the last `window` tokens, themselves included.

    The buffer has all tokens, so that blocks are whole; the model is shown the window - 1 tokens before a pass and the
    pass's own, and is told of where they begin, as by transformers' own sliding layer:

        window 4, 6 tokens there, a pass of 2:   0 1 2 [3 4 5 | 6 7]
    """

    is_sliding = True

    def __init__(
        self, buffer: KvBuffer, layer: int, filled_tokens: int, written: Callable[[int], None], window: int
    ) -> None:
        self.sliding_window = window
        self.cumulative_length = filled_tokens
        super().__init__(buffer, layer, filled_tokens, written)

    def get_seq_length(self) -> int:
        """Of the whole sequence, as positions need it."""
        return self.cumulative_length

    def get_max_length(self) -> int:
        return self.sliding_window

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many tokens a pass of `query_length` is shown, and the first one's position."""
        first = self._first(self.cumulative_length)
        return self.cumulative_length + query_length - first, first

    def _show(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        first, self.cumulative_length = self._first(self.cumulative_length), tokens
        keys, values = self._room[0, None, :, first:tokens], self._room[1, None, :, first:tokens]
        self.keys, self.values = keys, values
        return keys, values

    def _first(self, before: int) -> int:
        return max(0, before - self.sliding_window + 1)


def cache_over(buffer: KvBuffer, filled_tokens: int, written: Callable[[int], None]) -> DynamicCache:
    """A cache for the model whose first `filled_tokens` tokens are those already in the buffer."""
    cache = DynamicCache()
    windows = buffer.layout.windows or (0,) * buffer.layout.layers
    cache.layers.extend(
        SlidingBufferLayer(buffer, layer, filled_tokens, written, window)
        if window
        else BufferLayer(buffer, layer, filled_tokens, written)
        for layer, window in enumerate(windows)
    )
    cache.layer_class_to_replicate = None
    return cache


def probed_layout(cache: DynamicCache, block_tokens: int, dtype: str, model: str) -> KvLayout:
    """The layout of what a model has put into a DynamicCache. Raises UnsupportedModel, naming what is neither full attention
    nor attention in a sliding window.

    Looking at real tensors instead of the config catches what no config field says: layers that share KV, K and V of
    unlike shapes (MLA), caches that hold something else.
    """
    shapes, windows = set(), []
    for index, layer in enumerate(cache.layers):
        if not isinstance(layer, DynamicLayer) or type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise UnsupportedModel(
                model, f"layer {index} keeps a {type(layer).__name__}; only full and sliding attention are stored"
            )
        windows.append(layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else 0)
        keys, values = layer.keys, layer.values
        if keys is None or values is None or keys.shape != values.shape or keys.dim() != 4:
            raise UnsupportedModel(model, f"layer {index} has no K and V of one shape [batch, heads, tokens, dim]")
        if keys.dtype is not DTYPES[dtype]:
            raise UnsupportedModel(model, f"layer {index} keeps {keys.dtype} and not {dtype}")
        shapes.add((keys.shape[1], keys.shape[3]))
    if len(shapes) != 1:
        raise UnsupportedModel(model, f"its layers' [heads, dim] differ: {sorted(shapes)}")
    heads, dim = shapes.pop()
    return KvLayout(len(cache.layers), heads, dim, block_tokens, dtype, tuple(windows) if any(windows) else ())
