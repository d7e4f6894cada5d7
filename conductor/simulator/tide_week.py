"""A generated fortnight of load with daily waves and bursts, for judging capacity plans.

Documented parameters, deterministic by seed. The first week is the past that a planner may learn from, the second the one
it is judged on. Load is counted in nodes: how many prefill and decode nodes would be exactly busy.

    working hours   long documents in, short answers out       prefill load peaks at 14:00
    evenings        chats: short prompts, long answers         decode load peaks at 21:00
    weekends        60 % of the documents, 110 % of the chats
    trend           3 % more from week to week
    noise           lognormal, 6 % a slot
    bursts          5 a week on average, at any time, 1 to 3 hours, 1.2 to 1.6 times the load of one pool
"""

import math
import random
from dataclasses import dataclass

SLOTS_A_DAY = 48
SLOTS_A_WEEK = 7 * SLOTS_A_DAY

WEEKLY_GROWTH = 1.03
NOISE = 0.06
BURSTS_A_WEEK = 5
BURST_HOURS = (1.0, 3.0)
BURST_FACTOR = (1.2, 1.6)


@dataclass(frozen=True, slots=True)
class SlotLoad:
    """Node-equivalents of work that arrive in one slot: seconds of work / seconds of slot."""

    prefill: float
    decode: float


def fortnight(seed: int, nodes: int = 16) -> list[SlotLoad]:
    """Two weeks of slots whose peaks together need about 90 % of `nodes`, but never with the same split."""
    source = random.Random(seed)
    slots = [_expected(slot, nodes) for slot in range(2 * SLOTS_A_WEEK)]
    slots = [SlotLoad(s.prefill * _noise(source), s.decode * _noise(source)) for s in slots]
    for _ in range(_poisson(source, 2 * BURSTS_A_WEEK)):
        _burst(slots, source)
    return slots


def _expected(slot: int, nodes: int) -> SlotLoad:
    hour = slot % SLOTS_A_DAY * 24 / SLOTS_A_DAY
    weekend = slot // SLOTS_A_DAY % 7 >= 5
    growth = WEEKLY_GROWTH ** (slot / SLOTS_A_WEEK)
    documents = (0.6 if weekend else 1.0) * _wave(hour, 14.0, 3.5)
    chats = (1.1 if weekend else 1.0) * _wave(hour, 21.0, 3.0)
    prefill = 0.12 + 0.44 * documents + 0.06 * chats
    decode = 0.12 + 0.06 * documents + 0.44 * chats
    return SlotLoad(nodes * growth * prefill, nodes * growth * decode)


def _wave(hour: float, peak: float, width: float) -> float:
    """1 at the peak hour, falling like a bell to both sides, around the clock."""
    distance = min(abs(hour - peak), 24 - abs(hour - peak))
    return math.exp(-0.5 * (distance / width) ** 2)


def _noise(source: random.Random) -> float:
    return math.exp(source.gauss(0, NOISE))


def _burst(slots: list[SlotLoad], source: random.Random) -> None:
    start = source.randrange(len(slots))
    length = round(source.uniform(*BURST_HOURS) * SLOTS_A_DAY / 24)
    factor, of_documents = source.uniform(*BURST_FACTOR), source.random() < 0.5
    for i in range(start, min(start + length, len(slots))):
        load = slots[i]
        slots[i] = (
            SlotLoad(load.prefill * factor, load.decode)
            if of_documents
            else SlotLoad(load.prefill, load.decode * factor)
        )


def _poisson(source: random.Random, mean: float) -> int:
    count, product = 0, source.random()
    while product > math.exp(-mean):
        count, product = count + 1, product * source.random()
    return count
