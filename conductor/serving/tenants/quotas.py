"""How many tokens a tenant may use: sliding windows of a minute and of a day, in memory. Pure: the caller gives the time.

What a request may use at most is booked when it is admitted; what it did not use is given back when it has ended. A
Conductor that starts anew has all windows empty, and two Conductors count apart.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from mooncask.errors import TokenQuotaExceeded

SLOTS = 60
"""Parts of a window that leave it together."""
MINUTE, DAY = 60.0, 86400.0


@dataclass(slots=True)
class Window:
    """At most `limit` tokens in any `seconds`, as exact as one part of it. Belongs to one thread."""

    seconds: float
    limit: int
    used: int = 0
    _slots: "OrderedDict[int, int]" = field(default_factory=OrderedDict)

    def wait_seconds(self, tokens: int, now: float) -> float | None:
        """0: they fit now; else in how long they will. None: never, they are more than the limit."""
        self._leave(now)
        over = self.used + tokens - self.limit
        if over <= 0:
            return 0.0
        if tokens > self.limit:
            return None
        width = self.seconds / SLOTS
        for slot, amount in self._slots.items():
            over -= amount
            if over <= 0:
                return max(0.0, (slot + 1) * width + self.seconds - now)
        return self.seconds

    def book(self, tokens: int, now: float) -> None:
        self._leave(now)
        slot = self._slot(now)
        self._slots[slot] = self._slots.get(slot, 0) + tokens
        self.used += tokens

    def give_back(self, tokens: int, booked_at: float) -> None:
        """Of what was booked then; what has left the window is not given back twice."""
        last = self._slot(booked_at)
        for slot in (last, last - 1):  # the clock may have been read a moment later than for booking
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


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one tenant, in tokens of prompts and answers; 0: no limit."""

    tokens_per_minute: int = 0
    tokens_per_day: int = 0


class Quotas:
    """The windows of all tenants that have limits. Belongs to one thread."""

    def __init__(self, limits: Mapping[str, Limits]) -> None:
        self._windows = {tenant: _windows(one) for tenant, one in limits.items()}

    def admit(self, tenant: str, tokens: int, now: float) -> None:
        """Books them in every window, or in none. Raises TokenQuotaExceeded."""
        windows = self._windows.get(tenant, {})
        for what, window in windows.items():
            wait = window.wait_seconds(tokens, now)
            if wait != 0.0:
                raise TokenQuotaExceeded(tenant, what, window.limit, wait or 0.0)
        for window in windows.values():
            window.book(tokens, now)

    def give_back(self, tenant: str, tokens: int, booked_at: float) -> None:
        for window in self._windows.get(tenant, {}).values():
            window.give_back(tokens, booked_at)

    def used(self, now: float) -> dict[str, dict[str, tuple[int, int]]]:
        """By tenant and kind of window: tokens used and the limit."""
        told: dict[str, dict[str, tuple[int, int]]] = {}
        for tenant, windows in self._windows.items():
            for window in windows.values():
                window.wait_seconds(0, now)
            told[tenant] = {what: (window.used, window.limit) for what, window in windows.items()}
        return told


def _windows(limits: Limits) -> dict[str, Window]:
    windows = {}
    if limits.tokens_per_minute:
        windows["tokens a minute"] = Window(MINUTE, limits.tokens_per_minute)
    if limits.tokens_per_day:
        windows["tokens a day"] = Window(DAY, limits.tokens_per_day)
    return windows
