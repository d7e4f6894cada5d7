"""One direction of copies over a device: a stream of its own, and the slots of pinned memory that its copies use.

The order that everything rests on: a slot is lent to one copy from before the copy is launched until the event behind it
was waited for. So the device never reads a slot that the CPU is filling, and the CPU never reads one that the device is
filling. Other threads' launches on the same stream may come between; an event then waits for some of theirs as well, which
costs a little time and is never too early.
"""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch

from mooncask.engine_adapter.vllm.device.accelerator import Accelerator, Event, Pair
from mooncask.engine_adapter.vllm.device.staging import Ring, slot_stride
from mooncask.errors import DeviceFault

log = logging.getLogger(__name__)


class Lane:
    """Several threads at a time, each with a `Flight` of its own."""

    def __init__(self, accelerator: Accelerator, direction: str, slot_bytes: int, slots: int) -> None:
        """Allocates the pinned memory. Raises DeviceFault."""
        self.direction = direction
        self.ring = Ring(accelerator.name, accelerator.pinned(slots * slot_stride(slot_bytes)), slot_bytes)
        self.stream = accelerator.stream()

    def drain(self) -> bool:
        """Waits until no copy of this lane is under way, whoever launched it. False when the device does not say so: then
        nothing is copied over it any more, and its slots stay lent for ever."""
        try:
            self.stream.synchronize()
        except DeviceFault as fault:
            log.error("copies %s are given up: %s", self.direction, fault)
            self.ring.break_up(str(fault))
            return False
        return True


@dataclass(slots=True)
class _Leg:
    """One block on its way. `event` is None until its copies are launched; `payload`: where it is wanted in the end."""

    slot: torch.Tensor
    event: Event | None = None
    payload: torch.Tensor | None = None


class Flight:
    """One thread's copies over a lane. Leaving it without an error, all of them have landed; with one, none is under way
    any more, unless the lane is broken."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._legs: deque[_Leg] = deque()

    def slot(self) -> torch.Tensor:
        """One that nothing reads or writes: a free one, or the one of this thread's oldest copy, which is waited for. Only a
        thread without copies under way waits for the others' slots: they never wait for its, so each gets on.

        Raises DeviceFault."""
        slot = self._lane.ring.take_now()
        if slot is None:
            slot = self._land() if self._legs else self._lane.ring.take()
        self._legs.append(_Leg(slot))
        return slot

    def launch(self, pairs: Sequence[Pair], payload: torch.Tensor | None = None) -> None:
        """Copies between the slot that was asked for last and the device; afterwards from the slot to `payload`. Raises
        DeviceFault."""
        leg = self._legs[-1]
        assert leg.event is None, "each copy has a slot of its own"
        leg.event, leg.payload = self._lane.stream.copy(pairs), payload

    def land_all(self) -> None:
        """Raises DeviceFault."""
        while self._legs:
            self._lane.ring.give_back(self._land())

    def _land(self) -> torch.Tensor:
        """The oldest copy's slot, once the copy is done."""
        leg = self._legs[0]  # stays there until it is done: an error must find it
        assert leg.event is not None
        leg.event.synchronize()
        if leg.payload is not None:
            leg.payload.copy_(leg.slot[: leg.payload.numel()])
        return self._legs.popleft().slot

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.land_all()
        finally:
            # Not by their events: a copy that failed may be half launched, and has none.
            if self._legs and self._lane.drain():
                for leg in self._legs:
                    self._lane.ring.give_back(leg.slot)
