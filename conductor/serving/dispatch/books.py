"""What this Conductor has placed and is not finished, and what follows from it and the workers' reports: the facts to decide on.

A report tells of what runs at the worker, from whichever Conductor; the books add what was placed since, and know more of
their own requests: how long each should take. No clock, no I/O. Units: tokens, seconds on the monotonic clock.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mooncask.conductor.scheduling.facts import DecodeFacts, Decoding, PrefillFacts
from mooncask.conductor.serving.dispatch.pools import Worker

OUTPUT_START = 128.0
"""The mean answer before any has ended; it counts as one."""
MEMORY = 20
"""Answers over which means are taken: few, so that they follow the load."""


@dataclass(slots=True)
class PrefillEntry:
    """One prefill on one worker: predicted `seconds` of work, of `tokens` to compute."""

    worker: str
    tokens: int
    seconds: float
    started: float | None = None


@dataclass(slots=True)
class DecodeEntry:
    """One answer on one worker; `started` is None while its KV is still coming."""

    worker: str
    context_tokens: int
    eta: float
    started: float | None = None
    output_tokens: int = 0
    tbt_seconds: float = 0.0
    """Its level, of seconds a token."""


@dataclass(slots=True)
class Books:
    """By request id. Belongs to the event loop's thread."""

    prefills: dict[str, PrefillEntry] = field(default_factory=dict)
    decodes: dict[str, DecodeEntry] = field(default_factory=dict)
    slowness: dict[str, float] = field(default_factory=dict)
    """By worker: its prefills against the pool's model, a running mean."""
    _outputs: float = OUTPUT_START
    _decode_seconds: float | None = None
    _answered: int = 0

    @property
    def expected_output(self) -> int:
        return round(self._outputs)

    @property
    def decode_seconds(self) -> float | None:
        """How long answers took lately; None until one has ended."""
        return self._decode_seconds

    def answered(self, entry: DecodeEntry, now: float) -> None:
        """An answer has ended: it was this long and took this long."""
        self._answered += 1
        self._outputs += (entry.output_tokens - self._outputs) / min(MEMORY, self._answered + 1)
        seconds = now - (entry.started if entry.started is not None else now)
        before = self._decode_seconds or 0.0
        self._decode_seconds = before + (seconds - before) / min(MEMORY, self._answered)

    def observe_prefill(self, worker: str, predicted: float, seconds: float) -> None:
        if predicted > 0:
            before = self.slowness.get(worker, 1.0)
            ratio = min(10.0, max(0.1, seconds / predicted))
            self.slowness[worker] = before + (ratio - before) / 10

    def ours_on(self, worker: Worker) -> set[str]:
        """Requests of this Conductor that the worker has, or is about to have."""
        name = worker.name
        prefills = {request for request, entry in self.prefills.items() if entry.worker == name}
        return prefills | {request for request, entry in self.decodes.items() if entry.worker == name}

    # --- facts ---

    def prefill_facts(
        self, worker: Worker, held_tokens: int, soon_tokens: int, pace: float, now: float
    ) -> PrefillFacts:
        """`pace`: seconds a token of prefill, for requests of which only the tokens are known."""
        ours = [entry for entry in self.prefills.values() if entry.worker == worker.name]
        mine = sum(_left(entry, now) for entry in ours)
        return PrefillFacts(
            queue_seconds=mine + self._foreign_tokens(worker) * pace,
            prefix_tokens=max(held_tokens, soon_tokens),
            offered_tokens=held_tokens,
            waiting=len(ours),
            slowness=self.slowness.get(worker.name, 1.0),
        )

    def decode_facts(self, worker: Worker) -> DecodeFacts:
        """A worker without a free slot has room for nothing."""
        ours = [entry for entry in self.decodes.values() if entry.worker == worker.name]
        running = [entry for entry in ours if entry.started is not None]
        coming = [entry for entry in ours if entry.started is None]
        others, tokens = self._foreign(worker)
        full = len(ours) + others >= worker.registration.slots
        return DecodeFacts(
            requests=len(running) + others,
            context_tokens=sum(entry.context_tokens + entry.output_tokens for entry in running) + tokens,
            capacity_tokens=0 if full else worker.registration.kv_tokens or (1 << 40),
            coming_requests=len(coming),
            coming_tokens=sum(entry.context_tokens for entry in coming),
        )

    def free_slots(self, worker: Worker) -> int:
        if worker.full:
            return 0
        ours = sum(entry.worker == worker.name for entry in self.decodes.values())
        return worker.registration.slots - ours - self._foreign(worker)[0]

    def decoding(self) -> list[Decoding]:
        running = (entry for entry in self.decodes.values() if entry.started is not None)
        return [Decoding(entry.started or 0.0, entry.context_tokens + entry.output_tokens) for entry in running]

    def coming(self) -> list[Decoding]:
        return [Decoding(e.eta, e.context_tokens) for e in self.decodes.values() if e.started is None]

    # --- others' requests ---

    def others_on(self, worker: Worker) -> int:
        """Answers of other Conductors that it reports."""
        return self._foreign(worker)[0]

    def _foreign(self, worker: Worker) -> tuple[int, int]:
        """Answers of other Conductors that the worker reports: how many, and about how many tokens."""
        foreign = _unknown(worker.report.requests, self.decodes)
        known = max(1, len(worker.report.requests))
        return foreign, worker.report.context_tokens * foreign // known

    def _foreign_tokens(self, worker: Worker) -> int:
        foreign = _unknown(worker.report.requests, self.prefills)
        return worker.report.queued_tokens * foreign // max(1, len(worker.report.requests))


def _unknown(requests: Sequence[str], known: Iterable[str]) -> int:
    return sum(request not in known for request in requests)


def _left(entry: PrefillEntry, now: float) -> float:
    return entry.seconds if entry.started is None else max(0.0, entry.started + entry.seconds - now)
