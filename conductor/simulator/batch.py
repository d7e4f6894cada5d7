"""Continuous batching on one node, to the token interval but without an event a token.

Between two changes of the batch its steps form an arithmetic series (each adds one token of context a request), so a run
of any number of steps is one event, and the time of the next step boundary is the root of a quadratic:

    joins ──┬─ run of k steps ─┬─ a request ends or joins ─┬─ ...        gaps: one entry a step
            boundary           boundary

A request's gaps are a slice of the node's list of step times. Not here: who joins (`decode_node.py`, `coupled.py`).
"""

import heapq
import math
from array import array
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mooncask.conductor.models.cost import LinearStep

Gaps = npt.NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in or before the batch. `last_token_at` is when its latest token came out, or when it became ready."""

    request: int
    context: int
    remaining: int
    last_token_at: float
    first_step: int = 0
    first_gap_extra: float = 0.0
    earlier: list[Gaps] = field(default_factory=list)
    """Gaps from before it was preempted."""
    ends_at_step: int = 0
    fresh: bool = True
    """Its first token is still to come, on a node that computes the prompt's end itself."""


class Batch:
    """The sequences that decode together. Always stands at a step boundary, `time`."""

    def __init__(self, step: LinearStep, capacity_tokens: int) -> None:
        self._step, self._capacity = step, capacity_tokens
        self.time = 0.0
        self.context = 0
        self._gaps = array("d")
        self._ends: list[tuple[int, int, Sequence]] = []
        self._joined = 0
        self._stalled = 0.0

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def sequences(self) -> list[Sequence]:
        return [sequence for _, _, sequence in self._ends]

    def has_room(self, sequence: Sequence) -> bool:
        """Whether it fits with one more token for everybody, itself included."""
        return self.context + sequence.context + len(self) + 1 <= self._capacity

    def join(self, sequence: Sequence) -> None:
        """Takes part from the step that begins at `time`. The wait since its last token counts into its first gap."""
        sequence.first_step = len(self._gaps)
        sequence.first_gap_extra = self.time - sequence.last_token_at - self._stalled
        sequence.ends_at_step = len(self._gaps) + sequence.remaining
        self.context += sequence.context
        self._joined += 1
        heapq.heappush(self._ends, (sequence.ends_at_step, self._joined, sequence))

    def stall(self, seconds: float) -> None:
        """Nobody gets a token for this long: the node does something else."""
        self.time += seconds
        self._stalled = self._stalled + seconds if self._ends else 0.0

    def step_seconds(self) -> float:
        """The next step alone, without stalls."""
        return self._step.seconds(len(self), self.context)

    def steps_to_change(self) -> int:
        """Steps until the first request ends or memory is full; 0 means that one must be preempted first."""
        return min(self._ends[0][0] - len(self._gaps), (self._capacity - self.context) // len(self))

    def seconds_of(self, steps: int) -> float:
        slope = self._step.per_token * len(self)
        return steps * self.step_seconds() + slope * steps * (steps - 1) / 2

    def steps_until(self, time: float) -> int:
        """The least number of steps whose end is not before `time`, at least 1."""
        wait, first = time - self.time, self.step_seconds()
        half_slope = self._step.per_token * len(self) / 2
        linear = first - half_slope
        root = (math.sqrt(linear * linear + 4 * half_slope * max(0.0, wait)) - linear) / (2 * half_slope)
        steps = max(1, math.ceil(root - 1e-9))
        while self.time + self.seconds_of(steps) < time:
            steps += 1
        return steps

    def advance(self, steps: int, extra_seconds: float = 0.0) -> None:
        """Do this many steps; `extra_seconds` is added to the first (a prefill chunk that rides with it)."""
        batch, first = len(self), self.step_seconds()
        self.time += self.seconds_of(steps) + extra_seconds
        slope = self._step.per_token * batch
        lead = self._stalled + extra_seconds
        self._gaps.append(first + lead)
        if steps > 1:
            self._gaps.frombytes((first + slope * np.arange(1, steps)).tobytes())
        self._stalled = 0.0
        self.context += batch * steps

    def pop_ended(self) -> list[Sequence]:
        """Remove and return those whose last token came out at `time`."""
        ended = []
        while self._ends and self._ends[0][0] == len(self._gaps):
            ended.append(heapq.heappop(self._ends)[2])
        for sequence in ended:
            self.context -= sequence.context + sequence.remaining
        return ended

    def preempt_youngest(self) -> Sequence:
        """Take out the one that joined last; its context is kept in host memory and it can join again."""
        youngest = max(self._ends, key=lambda entry: entry[1])
        self._ends.remove(youngest)
        heapq.heapify(self._ends)
        sequence = youngest[2]
        done = len(self._gaps) - sequence.first_step
        if done:
            sequence.earlier.append(self._gaps_since_join(sequence))
            sequence.last_token_at = self.time
        sequence.context += done
        sequence.remaining -= done
        self.context -= sequence.context
        return sequence

    def gaps_of(self, sequence: Sequence) -> Gaps:
        """Seconds between the tokens of a sequence so far, its wait and the node's stalls included."""
        gaps = self._gaps_since_join(sequence)
        return np.concatenate([*sequence.earlier, gaps]) if sequence.earlier else gaps

    def _gaps_since_join(self, sequence: Sequence) -> Gaps:
        gaps = np.array(self._gaps[sequence.first_step : sequence.ends_at_step])
        if gaps.size:
            gaps[0] += sequence.first_gap_extra
        return gaps
