"""What `staged.py` asks of a GPU, in five calls: so that all but these calls themselves runs without one.

What is launched on a stream is done later, in the order of launches on that stream; nothing but an event that is waited for
orders two streams, or a stream and a thread.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch


class Pair(NamedTuple):
    """Flat tensors of bytes, equally long, one of them in pinned host memory and the other on the device."""

    target: torch.Tensor
    source: torch.Tensor


class Event(Protocol):
    """A point in a stream."""

    def synchronize(self) -> None:
        """Waits, without the GIL, until all that was launched before that point is done. What it read may then be
        overwritten, what it wrote may be read. Raises DeviceFault."""
        ...


class Stream(Protocol):
    """Any thread may launch."""

    def wait(self, event: Event) -> None:
        """What is launched here from now on begins after the event. Does not wait itself. Raises DeviceFault."""
        ...

    def copy(self, pairs: Sequence[Pair]) -> Event:
        """Launches the copies; the event is behind them. Raises DeviceFault, with some of the copies launched or none."""
        ...

    def synchronize(self) -> None:
        """Waits for all that was launched. Raises DeviceFault."""
        ...


class Accelerator(Protocol):
    """One device."""

    name: str

    def pinned(self, size: int) -> torch.Tensor:
        """Host memory that the device copies from and to by itself: flat, bytes. Raises DeviceFault."""
        ...

    def stream(self) -> Stream:
        """A new one, beside all others. Raises DeviceFault."""
        ...

    def mark(self) -> Event:
        """A point behind all that the calling thread has launched on its own current stream. Raises DeviceFault."""
        ...
