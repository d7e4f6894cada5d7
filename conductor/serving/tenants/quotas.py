"""How many tokens a tenant may use: sliding windows of a minute and of a day. Pure: the caller gives the time.

What a request may use at most is booked when it is admitted; what it did not use is given back when it has ended. Not here:
where windows are kept and how several Conductors share them (`shared_quotas.py`).
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

SLOTS = 60
"""Parts of a window that leave it together."""
MINUTE, DAY = 60.0, 86400.0
LEASE_SECONDS = 2.0
"""What was booked ahead for requests to come is used within that time, or given back."""


@dataclass(slots=True)
class Window:
    """At most `limit` tokens in any `seconds`, as exact as one part of it; limit 0: as many as one likes. Belongs to one thread."""

    seconds: float
    limit: int
    used: int = 0
    _slots: "OrderedDict[int, int]" = field(default_factory=OrderedDict)

    @classmethod
    def of(cls, seconds: float, limit: int, slots: Mapping[int, int]) -> "Window":
        return cls(seconds, limit, sum(slots.values()), OrderedDict(sorted(slots.items())))

    @property
    def slots(self) -> dict[int, int]:
        """Tokens by part, each part numbered from 1970 on."""
        return dict(self._slots)

    def wait_seconds(self, tokens: int, now: float) -> float | None:
        """0: they fit now; else in how long they will. None: never, they are more than the limit."""
        self._look(now)
        over = self.used + tokens - self.limit
        if over <= 0 or not self.limit:
            return 0.0
        if tokens > self.limit:
            return None
        width = self.seconds / SLOTS
        for slot, amount in self._slots.items():
            over -= amount
            if over <= 0:
                return max(0.0, (slot + 1) * width + self.seconds - now)
        return self.seconds

    def room(self, now: float) -> int:
        """Tokens that fit now."""
        self._look(now)
        return max(0, self.limit - self.used) if self.limit else 1 << 62

    def book(self, tokens: int, now: float) -> None:
        self._leave(now)
        slot = self._slot(now)
        late = slot not in self._slots and bool(self._slots) and slot < next(reversed(self._slots))
        self._slots[slot] = self._slots.get(slot, 0) + tokens
        if late:  # they leave in their order
            self._slots = OrderedDict(sorted(self._slots.items()))
        self.used += tokens

    def give_back(self, tokens: int, booked_at: float) -> None:
        """Of what was booked then, or ahead of then; what has left the window is not given back twice."""
        last, ahead = self._slot(booked_at), int(LEASE_SECONDS / (self.seconds / SLOTS))
        # One part more: the clock may have been read a moment later than for booking.
        for slot in range(last, last - 2 - ahead, -1):
            amount = min(tokens, self._slots.get(slot, 0))
            if amount:
                self._slots[slot] -= amount
                self.used -= amount
                tokens -= amount

    def _slot(self, at: float) -> int:
        return int(at // (self.seconds / SLOTS))

    def _leave(self, now: float) -> None:
        oldest = self._slot(now) - SLOTS
        while self._slots and (first := next(iter(self._slots))) < oldest:
            self.used -= self._slots.pop(first)

    def _look(self, now: float) -> None:
        """At what counts now. More than a window ahead of now nothing can be booked: a clock was wrong. It counts as booked
        now, or it would be held until that time has come."""
        self._leave(now)
        this, ahead = self._slot(now), 0
        while self._slots and (last := next(reversed(self._slots))) > this + SLOTS:
            ahead += self._slots.pop(last)
        if ahead:
            self.used -= ahead
            self.book(ahead, now)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one tenant, in tokens of prompts and answers; 0: no limit."""

    tokens_per_minute: int = 0
    tokens_per_day: int = 0

    @property
    def least(self) -> int:
        """The tighter one; 0: there is none."""
        return min((limit for limit in (self.tokens_per_minute, self.tokens_per_day) if limit), default=0)


@dataclass(frozen=True, slots=True)
class Refusal:
    """`what` is used up. `seconds` None: it will never fit."""

    what: str
    limit: int
    seconds: float | None


_decoder: "msgspec.msgpack.Decoder[dict[str, dict[int, int]]]" = msgspec.msgpack.Decoder(dict[str, dict[int, int]])


class Windows:
    """All windows of one tenant; also those without a limit are counted, so that one may be given later."""

    def __init__(self, limits: Limits, encoded: bytes = b"") -> None:
        """Raises msgspec.DecodeError for what is no `encoded` of another."""
        slots = _decoder.decode(encoded) if encoded else {}
        self._windows = {
            what: Window.of(seconds, limit, slots.get(what, {}))
            for what, seconds, limit in (
                ("tokens a minute", MINUTE, limits.tokens_per_minute),
                ("tokens a day", DAY, limits.tokens_per_day),
            )
        }

    def encoded(self) -> bytes:
        return msgspec.msgpack.encode({what: window.slots for what, window in self._windows.items()})

    def refusal(self, tokens: int, now: float) -> Refusal | None:
        for what, window in self._windows.items():
            wait = window.wait_seconds(tokens, now)
            if wait != 0.0:
                return Refusal(what, window.limit, wait)
        return None

    def room(self, now: float) -> int:
        return min(window.room(now) for window in self._windows.values())

    def change(self, tokens: int, at: float) -> None:
        """Books tokens at that time; less than 0: gives back what was booked then."""
        for window in self._windows.values():
            if tokens > 0:
                window.book(tokens, at)
            else:
                window.give_back(-tokens, at)

    def used(self, now: float, ahead: int) -> dict[str, tuple[int, int]]:
        """By window with a limit: tokens used and the limit. `ahead`: booked for requests to come."""
        for window in self._windows.values():
            window.room(now)
        limited = {what: window for what, window in self._windows.items() if window.limit}
        return {what: (max(0, window.used - ahead), window.limit) for what, window in limited.items()}


def folded(changes: Mapping[int, int]) -> Counter[int]:
    """The same to every window with fewer entries, at most one for each part of a window: what has left the shorter one is told by
    the longer one's parts, and what has left that goes."""
    newest, part = max(changes), int(DAY / SLOTS)
    found: Counter[int] = Counter()
    for second, tokens in changes.items():
        if second > newest - 2 * MINUTE:
            found[second] += tokens
        elif second > newest - DAY - 2 * part:
            found[second - second % part] += tokens
    return found
