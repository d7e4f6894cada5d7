"""When to create, refresh and drop a cache so that a day's calls cost least: dynamic programming over slots of time. Pure.

The day is cut into slots (of half an hour, if nothing else is said), and in each the cache is held or not: what comes out is a
timetable for days like this one, not hindsight about single calls. Assumed: a call in a slot in which the cache is held uses it;
the cache is ordered so early that it is ready in time; without it every call pays the full input price (automatic hits are not
counted on).

    out[j]  = min(out[j-1], held[j-1])            + calls of slot j at the full price
    held[j] = min(out[j-1] + creation, held[j-1]) + storage of slot j + its calls at the cached price
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mooncask.conductor.serving.billing.prices import MILLION, Prices

MINUTE_SECONDS = 60.0
TTL_MINUTES_MAX = 60
SLOT_MINUTES = 30


@dataclass(frozen=True, slots=True)
class Period:
    """A cache is held from minute `begin` up to and with minute `end`, counted from the log's time 0."""

    begin: int
    end: int

    @property
    def minutes(self) -> int:
        return self.end - self.begin + 1

    @property
    def refreshes(self) -> list[int]:
        """Minutes at which its time to live is set anew: the longest is an hour, and a minute is kept in hand."""
        return list(range(self.begin + TTL_MINUTES_MAX - 1, self.end + 1, TTL_MINUTES_MAX - 1))


@dataclass(frozen=True, slots=True)
class Advice:
    """For one prefix of `tokens` tokens that `calls` calls begin with."""

    tokens: int
    calls: int
    without: float
    cost: float
    periods: list[Period]

    @property
    def saved_share(self) -> float:
        return 1 - self.cost / self.without if self.without else 0.0


@dataclass(frozen=True, slots=True)
class _Rates:
    """Of one prefix."""

    full: float
    hit: float
    creation: float
    minute: float

    @classmethod
    def of(cls, tokens: int, prices: Prices) -> "_Rates":
        share = tokens / MILLION
        return cls(
            share * prices.input,
            share * prices.cached + prices.call,
            share * prices.creation,
            share * prices.storage_minute,
        )


def advise(seconds: Iterable[float], tokens: int, prices: Prices, slot_minutes: int = SLOT_MINUTES) -> Advice:
    """`seconds`: when calls were made whose prompts begin with these `tokens` tokens."""
    by_slot = Counter(int(second // (MINUTE_SECONDS * slot_minutes)) for second in seconds)
    rates, calls = _Rates.of(tokens, prices), sum(by_slot.values())
    slots = range(min(by_slot, default=0), max(by_slot, default=-1) + 1)
    storage, out, held = slot_minutes * rates.minute, 0.0, float("inf")
    choices: list[_Choice] = []
    for slot in slots:
        choices.append(_Choice(held < out, held <= out + rates.creation))
        full, hit = by_slot[slot] * rates.full, by_slot[slot] * rates.hit
        out, held = min(out, held) + full, min(out + rates.creation, held) + storage + hit
    runs = _held_runs(slots, choices, held < out)
    periods = [Period(first * slot_minutes, (last + 1) * slot_minutes - 1) for first, last in runs]
    return Advice(tokens, calls, calls * rates.full, min(out, held), periods)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Of one slot: whether the cheapest way to it held the cache in the slot before, if it is not held in this one or if it is."""

    out: bool
    held: bool


def _held_runs(slots: Sequence[int], choices: Sequence[_Choice], held: bool) -> list[tuple[int, int]]:
    """First and last slot of each time that it is held: back from the cheaper end."""
    runs: list[tuple[int, int]] = []
    last: int | None = None
    for slot, choice in zip(reversed(slots), reversed(choices), strict=True):
        if not held:
            held = choice.out
            continue
        last = slot if last is None else last
        held = choice.held
        if not held:
            runs.append((slot, last))
            last = None
    return runs[::-1]


def cost_of(seconds: Iterable[float], tokens: int, prices: Prices, periods: Sequence[Period]) -> float:
    """What the same calls cost with the cache held in these periods."""
    rates = _Rates.of(tokens, prices)
    cost = sum(rates.creation + period.minutes * rates.minute for period in periods)
    for second in seconds:
        minute = int(second // MINUTE_SECONDS)
        inside = any(period.begin <= minute <= period.end for period in periods)
        cost += rates.hit if inside else rates.full
    return cost
