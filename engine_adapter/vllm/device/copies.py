"""The interface: blocks into and out of the memory that the engine's KV lies in, in order with the engine's computing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from mooncask.engine_adapter.vllm.device.accelerator import Event

Mark = Event | None
"""A moment of the engine's computing. None: all that was begun before is done."""


class Piece(NamedTuple):
    """A part of a block in the engine's memory: flat bytes, which are at `start` in the payload."""

    data: torch.Tensor
    start: int

    def part_of(self, payload: torch.Tensor) -> torch.Tensor:
        return payload[self.start : self.start + self.data.numel()]


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The two places of one block, or of a part of it that lies together in the store."""

    pieces: Sequence[Piece]
    """A load may leave out some of the payload; a save must not."""
    payload: torch.Tensor
    """In the store's memory, on the CPU: flat bytes. A source is only read."""

    @property
    def is_whole(self) -> bool:
        """Whether the pieces are all of the payload."""
        return sum(piece.data.numel() for piece in self.pieces) == self.payload.numel()


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

        Raises DeviceFault, after which any of the blocks may hold anything, and nothing writes to them any more unless
        `check` raises.
        """
        ...

    def save(self, copies: Sequence[BlockCopy], after: Mark) -> None:
        """Copies the engine's blocks to payloads, as they are when what `after` marks is done. When it returns the payloads are
        written and the engine's blocks are free.

        Raises ValueError, before anything is copied, for one that is not whole; DeviceFault, after which the payloads may hold
        anything.
        """
        ...

    def check(self) -> None:
        """Raises DeviceFault when copies into the engine's memory were begun of which nobody can say whether they have ended:
        no block may be computed into that memory then."""
        ...

    def close(self) -> None:
        """No load or save is under way. Idempotent."""
        ...


def check_whole(copies: Sequence[BlockCopy]) -> None:
    """Raises ValueError."""
    if not all(copy.is_whole for copy in copies):
        raise ValueError("a block of which the engine has only a part can't be saved")
