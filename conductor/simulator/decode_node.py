"""A decode node: continuous batching within its KV memory, first come, first served.

With a `tail` it computes the end of each prompt itself, between two steps: that gives the first token, and everybody waits.
"""

from collections import deque
from collections.abc import Callable

from mooncask.conductor.models.cost import LinearStep
from mooncask.conductor.simulator.batch import Batch, Sequence
from mooncask.conductor.simulator.events import EventQueue

Ended = Callable[[Sequence], None]
Tail = Callable[[Sequence], float]
"""Seconds of the prompt's end."""
Stepped = Callable[[int, int, float], None]


class DecodeNode:
    """Calls `ended` at the time a sequence's last token comes out, and `stepped` with the costs of a step it saw.

    With a `tail`, `began` hears of a first token and its time, and a sequence has one token less to come.
    """

    def __init__(
        self,
        events: EventQueue,
        step: LinearStep,
        capacity_tokens: int,
        ended: Ended,
        stepped: Stepped,
        tail: Tail | None = None,
        began: Callable[[Sequence, float], None] = lambda sequence, time: None,
    ) -> None:
        self.batch = Batch(step, capacity_tokens)
        self.waiting: deque[Sequence] = deque()
        self.context_peak = 0
        self._events, self._ended, self._stepped, self._tail, self._began = events, ended, stepped, tail, began
        self._planned = (0.0, 0)
        self._generation = 0
        self._beginning = False

    def arrive(self, sequence: Sequence) -> None:
        """All KV of the sequence is in the node's DRAM; it joins at the next step boundary with room."""
        self.waiting.append(sequence)
        now = self._events.now
        if not len(self.batch):
            self._begin_now()
        elif now < self._planned[0]:
            steps = self.batch.steps_until(now)
            if steps < self._planned[1]:
                self._plan(steps)

    def _begin_now(self) -> None:
        """An idle node begins once all that arrives at this very time is there."""
        if not self._beginning:
            self._beginning = True
            self._events.at(self._events.now, self._begin)

    def _begin(self) -> None:
        self._beginning = False
        self.batch.time = max(self.batch.time, self._events.now)  # an answer of one token may have kept it busy
        self._change()

    def _plan(self, steps: int) -> None:
        self._generation += 1
        generation = self._generation
        end = max(self._events.now, self.batch.time + self.batch.seconds_of(steps))
        self._planned = (end, steps)
        self._events.at(end, lambda: self._boundary(generation))

    def _boundary(self, generation: int) -> None:
        if generation != self._generation:
            return  # an arrival cut this run short
        before = self.batch.time
        size, context = len(self.batch), self.batch.context
        steps = self._planned[1]
        self.batch.advance(steps)
        self.context_peak = max(self.context_peak, self.batch.context)
        self._stepped(size, context + size * (steps - 1) // 2, (self.batch.time - before) / steps)
        for sequence in self.batch.pop_ended():
            self._ended(sequence)
        self._change()

    def _change(self) -> None:
        """At a boundary: let in who fits, put out who does not, plan the next run."""
        while self.waiting and self.batch.has_room(self.waiting[0]):
            self._join(self.waiting.popleft())
        while len(self.batch) and not self.batch.steps_to_change():
            self.waiting.appendleft(self.batch.preempt_youngest())
        if len(self.batch):
            self._plan(self.batch.steps_to_change())

    def _join(self, sequence: Sequence) -> None:
        if self._tail is not None and sequence.fresh:
            self.batch.stall(self._tail(sequence))
            sequence.fresh, sequence.last_token_at = False, self.batch.time
            sequence.remaining, sequence.context = sequence.remaining - 1, sequence.context + 1
            self._began(sequence, self.batch.time)
            if not sequence.remaining:
                self._events.at(self.batch.time, lambda: self._ended(sequence))
                return
        self.batch.join(sequence)
