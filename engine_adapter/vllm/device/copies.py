"""The interface: blocks into and out of the memory that the engine's KV lies in, in order with the engine's computing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from mooncask.engine_adapter.vllm.device.accelerator import Event

Mark = Event | None
"""A moment of the engine's computing. None: all that was begun before is done."""


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """One block's two places, as flat tensors of bytes."""

    pieces: Sequence[torch.Tensor]
    """In the engine's memory; one after another they are the block."""
    payload: torch.Tensor
    """In the store's memory, on the CPU. A source is only read."""

    @property
    def size(self) -> int:
        return sum(piece.numel() for piece in self.pieces)

    def check(self) -> None:
        """Raises ValueError when the places are not equally long."""
        if self.payload.numel() != self.size:
            raise ValueError(f"a block of {self.payload.numel()} bytes; this engine's have {self.size}")


class BlockCopies(Protocol):
    """`mark` is for the thread that computes, `load` and `save` are for any others, several at a time."""

    blocks_at_once: int
    """A save of more is better made in parts: a part can't be called off."""

    def mark(self) -> Mark:
        """All that the calling thread has launched so far. Does not wait. Raises DeviceFault."""
        ...

    def load(self, copies: Sequence[BlockCopy], after: Mark) -> None:
        """Copies payloads to the engine, not before what `after` marks is done. When it returns the bytes are there for all
        that is launched from then on, and the payloads are free.

        Raises ValueError before anything is copied; DeviceFault, after which any of the blocks may hold anything, and nothing
        writes to them any more unless `check` raises.
        """
        ...

    def save(self, copies: Sequence[BlockCopy], after: Mark) -> None:
        """Copies the engine's blocks to payloads, as they are when what `after` marks is done. When it returns the payloads are
        written and the engine's blocks are free.

        Raises ValueError before anything is copied; DeviceFault, after which the payloads may hold anything.
        """
        ...

    def check(self) -> None:
        """Raises DeviceFault when copies into the engine's memory were begun of which nobody can say whether they have ended:
        no block may be computed into that memory then."""
        ...

    def close(self) -> None:
        """No load or save is under way. Idempotent."""
        ...


def check_all(copies: Sequence[BlockCopy]) -> None:
    """Raises ValueError."""
    for copy in copies:
        copy.check()
