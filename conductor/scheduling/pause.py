"""When decode stands still so that a prefill which shares its machine goes first. Pure.

A prefill and a decode batch on one machine slow each other down. Standing still costs every running answer a gap between two
tokens; it is worth that only where a first token would be late without it, in time with it, and no answer becomes late.

Lateness of an answer is that of its mean: the tokens it has told by now against its level of seconds a token, so an answer
that has been fast has time to give. Not here: who obeys it. No worker does yet (docs/CONDUCTOR.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mooncask.conductor.scheduling.facts import Slo


@dataclass(frozen=True, slots=True)
class Running:
    """An answer in the batch: tokens told since it began to decode, `seconds` ago."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """A prefill on the same machine: seconds of work left if it had the machine for itself, and until it is late."""

    work_seconds: float
    left_seconds: float


@dataclass(frozen=True, slots=True)
class PauseDecode:
    """`slowdown`: how many times longer a prefill takes beside a decoding batch. `seconds_max`: the longest pause; a gap that a
    reader notices is worse than its share of a mean."""

    slo: Slo
    slowdown: float = 2.0
    seconds_max: float = 0.5

    def seconds(self, waiting: Waiting, running: Sequence[Running]) -> float:
        """How long decode stands still now; 0.0: it goes on."""
        if not running or waiting.work_seconds * self.slowdown <= waiting.left_seconds:
            return 0.0
        needed = self._needed(waiting)
        spare = min(answer.tokens * self.slo.tbt_seconds - answer.seconds for answer in running)
        return needed if needed <= min(spare, self.seconds_max) else 0.0

    def _needed(self, waiting: Waiting) -> float:
        """The shortest pause with which it is just in time; what no pause can save needs for ever.

        In p seconds of pause p of its work are done, and the rest takes `slowdown` times as long.
        """
        if waiting.work_seconds > waiting.left_seconds:
            return float("inf")
        late = waiting.work_seconds * self.slowdown - waiting.left_seconds
        return late / (self.slowdown - 1)


@dataclass(frozen=True, slots=True)
class NeverPause:
    """Decode goes on whatever waits."""

    def seconds(self, waiting: Waiting, running: Sequence[Running]) -> float:
        return 0.0
