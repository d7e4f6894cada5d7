"""The load of each model by slots of time, in workers that it would have kept exactly busy. Pure: the caller gives the time.

What was rejected counts as if it had been served: a plan is for what people want. Kept: DAYS_MAX days.
"""

from dataclasses import dataclass, field

import numpy as np

from mooncask.conductor.scheduling.tide import Loads

DAYS_MAX = 15
DAY_SECONDS = 86400.0


@dataclass(slots=True)
class LoadRecord:
    """Of one model. Slot n covers [n, n + 1) · `slot_seconds` since 1970; a slot ends when a later one is spoken of."""

    slot_seconds: float
    first_slot: int | None = None
    """The number of the first slot in `past`."""
    past: list[tuple[float, float]] = field(default_factory=list)
    """Prefill and decode work of the slots that have ended, in workers."""
    _slot: int | None = None
    _since: float = 0.0
    """From when on the present slot was heard of."""
    _prefill_seconds: float = 0.0
    _decode_seconds: float = 0.0

    @property
    def slots_a_day(self) -> int:
        return max(1, round(DAY_SECONDS / self.slot_seconds))

    def add(self, prefill_seconds: float, decode_seconds: float, now: float) -> None:
        """Work of one request: seconds of one worker each."""
        self.advance(now)
        self._prefill_seconds += prefill_seconds
        self._decode_seconds += decode_seconds

    def advance(self, now: float) -> bool:
        """Whether a slot has ended since the last call. Slots that nobody spoke of had no load."""
        slot = int(now // self.slot_seconds)
        if self._slot is None or slot < self._slot:
            self._slot, self._since = slot, now
            return False
        if slot == self._slot:
            return False
        seconds = max((self._slot + 1) * self.slot_seconds - self._since, self.slot_seconds / 10)
        self._append((self._prefill_seconds / seconds, self._decode_seconds / seconds), self._slot)
        for missed in range(self._slot + 1, min(slot, self._slot + self.slots_a_day)):
            self._append((0.0, 0.0), missed)
        self._slot, self._since, self._prefill_seconds, self._decode_seconds = slot, slot * self.slot_seconds, 0.0, 0.0
        return True

    def loads(self) -> Loads:
        """Shape (slots, 2)."""
        return np.array(self.past, dtype=np.float64).reshape(-1, 2)

    def restore(self, first_slot: int, past: list[tuple[float, float]]) -> None:
        """What was recorded by an earlier run."""
        self.first_slot, self.past = first_slot, past[-self.slots_a_day * DAYS_MAX :]
        self._slot = None

    def resume(self, now: float) -> None:
        """Fills the time since the last slot that was restored, as if every slot had been like that of a day before."""
        if self.first_slot is None or not self.past:
            return
        missing = int(now // self.slot_seconds) - self.first_slot - len(self.past)
        if missing > self.slots_a_day * DAYS_MAX:
            self.first_slot, self.past = None, []
        for _ in range(missing if self.past else 0):
            self.past.append(self.past[-self.slots_a_day] if len(self.past) >= self.slots_a_day else self.past[-1])

    def _append(self, load: tuple[float, float], slot: int) -> None:
        if self.first_slot is None:
            self.first_slot = slot
        self.past.append(load)
        over = len(self.past) - self.slots_a_day * DAYS_MAX
        if over > 0:
            del self.past[:over]
            self.first_slot += over
