"""A bounded number of equal pieces of pinned host memory, lent to one copy at a time.

Knows no device: whoever gives a slot back says that nothing reads or writes it any more.
"""

import threading
from collections import deque

import torch

from mooncask.errors import DeviceFault

ALIGNMENT = 512
"""Of slots; the device's copies are fastest from there."""


class Ring:
    """Any thread may take and give back."""

    def __init__(self, device: str, memory: torch.Tensor, slot_bytes: int) -> None:
        """`memory` is flat; as many slots as fit in it."""
        stride = slot_stride(slot_bytes)
        starts = range(0, memory.numel() - slot_bytes + 1, stride)
        self._device = device
        self._free = deque(memory[start : start + slot_bytes] for start in starts)
        self._changed = threading.Condition()
        self._broken = ""
        self.slots = len(self._free)
        assert self.slots, f"{memory.numel()} bytes hold no slot of {slot_bytes}"

    @property
    def free(self) -> int:
        return len(self._free)

    def take_now(self) -> torch.Tensor | None:
        """None when all are lent. Raises DeviceFault when the ring is broken."""
        with self._changed:
            self._check()
            return self._free.popleft() if self._free else None

    def take(self) -> torch.Tensor:
        """Waits for a slot. For those who have none: who waits while he has some could wait for himself. Raises
        DeviceFault when the ring is broken, then or meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._broken)
            self._check()
            return self._free.popleft()

    def give_back(self, slot: torch.Tensor) -> None:
        """To the end of the queue."""
        with self._changed:
            self._free.append(slot)
            self._changed.notify()

    def break_up(self, why: str) -> None:
        """No slot is lent any more, those given back included; who waits for one is told why."""
        with self._changed:
            self._broken = self._broken or why
            self._changed.notify_all()

    @property
    def broken(self) -> str:
        """Why; empty while it is not."""
        return self._broken

    def _check(self) -> None:
        if self._broken:
            raise DeviceFault(self._device, "its copies have been given up", self._broken)


def slot_stride(slot_bytes: int) -> int:
    """From one slot to the next."""
    return -(-slot_bytes // ALIGNMENT) * ALIGNMENT
