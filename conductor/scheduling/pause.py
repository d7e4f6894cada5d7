"""When decode stands still so that a prefill which shares its machine goes first. Pure.

A prefill and a decode batch on one machine slow each other down. Standing still costs every running answer a gap between two
tokens; it is worth that only where a first token would be late without it, in time with it, and no answer becomes late.

Lateness of an answer is that of its mean: the tokens it has told by now against its level of seconds a token, so an answer
that has been fast has time to give. Not here: who obeys it (`engine_adapter/transformers/server/stand_still.py`), and when it
is asked (`conductor/serving/dispatch/pausing.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mooncask.errors import BadArgument


@dataclass(frozen=True, slots=True)
class Running:
    """An answer in the batch: tokens told since it began to decode, `seconds` ago; its level is `tbt_seconds` a token."""

    tokens: int
    seconds: float
    tbt_seconds: float

    @property
    def spare_seconds(self) -> float:
        return self.tokens * self.tbt_seconds - self.seconds


@dataclass(frozen=True, slots=True)
class Waiting:
    """A prefill on the same machine: seconds of work left if it had the machine for itself, and until it is late."""

    work_seconds: float
    left_seconds: float


class Pause(Protocol):
    def seconds(self, waiting: Waiting, running: Sequence[Running], slowdown: float) -> float:
        """How long decode stands still now; 0.0: it goes on. `slowdown`: how many times longer a prefill takes beside it."""
        ...


@dataclass(frozen=True, slots=True)
class PauseForLevels:
    """`seconds_max`: the longest pause at a time; what needs more gets the next one when every answer has told a token."""

    seconds_max: float = 0.5

    def seconds(self, waiting: Waiting, running: Sequence[Running], slowdown: float) -> float:
        if not running or slowdown <= 1 or waiting.work_seconds * slowdown <= waiting.left_seconds:
            return 0.0
        needed = _needed(waiting, slowdown)
        spare = min(answer.spare_seconds for answer in running)
        return min(needed, self.seconds_max) if needed <= spare else 0.0


@dataclass(frozen=True, slots=True)
class NeverPause:
    """Decode goes on whatever waits."""

    def seconds(self, waiting: Waiting, running: Sequence[Running], slowdown: float) -> float:
        return 0.0


def _needed(waiting: Waiting, slowdown: float) -> float:
    """The shortest pause with which it is just in time; what no pause can save needs for ever.

    In p seconds of pause p of its work are done, and the rest takes `slowdown` times as long.
    """
    if waiting.work_seconds > waiting.left_seconds:
        return float("inf")
    return (waiting.work_seconds * slowdown - waiting.left_seconds) / (slowdown - 1)


PAUSES = ("never", "slo")


@dataclass(frozen=True, slots=True)
class PauseSettings:
    """`policy`: one of PAUSES. `slowdown`: what is reckoned with until it is learned."""

    policy: str = "never"
    slowdown: float = 2.0
    seconds_max: float = 0.5


def make_pause(settings: PauseSettings) -> Pause:
    """Raises BadArgument for an unknown name."""
    match settings.policy:
        case "never":
            return NeverPause()
        case "slo":
            return PauseForLevels(settings.seconds_max)
    raise BadArgument("pause_decode", repr(settings.policy), f"one of {', '.join(PAUSES)}")
