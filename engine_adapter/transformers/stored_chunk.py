"""The blocks that one prefill chunk completes, on their way into the store layer by layer."""

import time

from mooncask.client.reservations import Reservations
from mooncask.client.wire import CommitState
from mooncask.engine_adapter.transformers.kv_layout import KvBuffer

ADVANCE_SECONDS_MIN = 0.01
"""Between two words to the daemon about how far a chunk is: with fast layers, telling of each would cost more than it helps."""


class StoredChunk:
    """Reserved places for blocks `indices` of one request, filled from its buffer. Ends with `commit`; dropped without
    it, its places go back to the daemon."""

    def __init__(self, reservations: Reservations, indices: range, buffer: KvBuffer) -> None:
        layout = buffer.layout
        self._reservations, self._buffer = reservations, buffer
        self._told_at = 0.0
        self._indices = indices
        self._missing = set(range(layout.layers))
        self._open = [
            (index, slot.torch(layout.torch_dtype, layout.block_shape))
            for index, slot in zip(indices, reservations, strict=True)
            if slot is not None
        ]

    @property
    def layer_bytes(self) -> int:
        """What one layer of those blocks takes that there is a place for."""
        layout = self._buffer.layout
        return len(self._open) * layout.block_bytes // layout.layers

    def save_layer(self, layer: int) -> None:
        """Copies one layer of every block to its place."""
        for index, block in self._open:
            self._buffer.save_layer(layer, index, block)
        self._missing.discard(layer)

    def tell(self, layers: int) -> None:
        """Tells the daemon that layers [0, layers) are there, if it was not told something just now. Raises what the store
        answers."""
        if time.monotonic() - self._told_at >= ADVANCE_SECONDS_MIN:
            self._reservations.advance(layers)
            self._told_at = time.monotonic()

    def save_all(self) -> None:
        """Copies every block to its place."""
        for index, block in self._open:
            self._buffer.save_block(index, block)
        self._missing.clear()

    def commit(self, published_tokens: list[int]) -> list[CommitState]:
        """Publishes the blocks; from now on their places are their readers'. With the request's tokens, if it may be told
        which those are. Raises ValueError for blocks that are not whole, and what the store answers."""
        if self._missing:
            raise ValueError(f"layers {sorted(self._missing)} of blocks {self._indices} were not saved")
        self._open = []
        size = self._buffer.layout.block_tokens
        ids = [published_tokens[index * size : (index + 1) * size] for index in self._indices]
        return self._reservations.commit(token_ids=ids if published_tokens else None)
