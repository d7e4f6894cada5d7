"""Where a request goes: the policies on live facts. What is decided is entered in the books in the same step.

Not here: asking the nodes (`prefixes.py`), carrying it out (`dispatcher.py`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from mooncask.client.worker_api import Role
from mooncask.conductor.scheduling.decision import Arrival, Assignment, Policies, PoolFacts, Rejection
from mooncask.conductor.scheduling.facts import PrefillFacts, Reason
from mooncask.conductor.scheduling.placement import local_choice, with_shared
from mooncask.conductor.serving.dispatch.books import Books, DecodeEntry, PrefillEntry
from mooncask.conductor.serving.dispatch.costs import PoolCosts, PromptCosts
from mooncask.conductor.serving.dispatch.history import Candidate, Decision
from mooncask.conductor.serving.dispatch.pools import Pools, Worker
from mooncask.conductor.serving.dispatch.prefixes import Held
from mooncask.errors import NoWorkers, Overloaded

RETRY_SECONDS_MIN = 1.0


@dataclass(frozen=True, slots=True)
class Prompt:
    """What placement looks at. `held`: by node name, in blocks; `engines`: by worker, what its engine has itself."""

    request: str
    model: str
    tokens: int
    priority: int
    block_tokens: int
    held: dict[str, Held]
    engines: dict[str, int] = field(default_factory=dict)

    def most(self) -> int:
        """Tokens of it that somebody has."""
        held = (held.now for held in self.held.values())
        return max([*held, *self.engines.values()], default=0) * self.block_tokens


@dataclass(frozen=True, slots=True)
class Placement:
    """`prefill` is None where decode computes the little that is missing."""

    prefill: Worker | None
    decode: Worker
    matched_tokens: int
    ttft_seconds: float
    prefill_seconds: float


@dataclass(slots=True)
class Placer:
    """Of one Conductor. `inline_tokens`: as many missing tokens as decode computes itself. `nodes_share`: a node's daemon brings
    what other nodes hold by itself."""

    pools: Pools
    books: Books
    inline_tokens: int
    nodes_share: bool = True

    def place(
        self, prompt: Prompt, policies: Policies, costs: PoolCosts, decision: Decision, exclude: set[str], admit: bool
    ) -> Placement:
        """Raises NoWorkers, and Overloaded when `admit` asks for admission and that rejects."""
        now = time.monotonic()
        prefills = _others(self.pools.able(prompt.model, Role.PREFILL, now), exclude)
        decodes = _others(self.pools.able(prompt.model, Role.DECODE, now), exclude)
        if not decodes:
            raise NoWorkers(f"no decode worker of model {prompt.model} answers")
        matched = max((held.now for held in prompt.held.values()), default=0) * prompt.block_tokens
        decision.matched_tokens = prompt.most()
        inline = prompt.tokens - matched <= self.inline_tokens
        if not prefills and not inline:
            raise NoWorkers(f"no prefill worker of model {prompt.model} answers")
        looked_at = decodes if inline else prefills
        prices = PromptCosts(costs, [worker.name for worker in looked_at], inline)
        facts = self._facts(prompt, looked_at, decodes, prices, now)
        arrival = Arrival(0, now, prompt.tokens, prompt.priority)
        decided = policies.decide(arrival, facts, prices)
        if isinstance(decided, Rejection):
            decided = self._admitted_anyway(decided, arrival, facts, policies, prices, admit)
        choice = decided.prefill
        if inline:  # whoever decodes it computes it
            choice = local_choice(prompt.tokens, decided.decode, facts.prefills[decided.decode], prices)
        decode = decodes[decided.decode]
        worker = None if inline else prefills[choice.node]
        told = facts.prefills[choice.node]
        seconds = told.slowness * prices.occupied_seconds(prompt.tokens, choice.prefix_tokens)
        _note(decision, worker, decode, choice.ttft_seconds, inline, looked_at, facts.prefills, prompt, prices)
        if worker is not None:
            tokens = prompt.tokens - choice.prefix_tokens
            self.books.prefills[prompt.request] = PrefillEntry(worker.name, tokens, seconds)
        return Placement(worker, decode, matched, choice.ttft_seconds, seconds)

    def take_slot(self, prompt: Prompt, wanted: Worker, eta: float, exclude: set[str]) -> Worker | None:
        """A decode worker with a free slot, the wanted one if it has one; entered in the books. None when all are full."""
        able = _others(self.pools.able(prompt.model, Role.DECODE, time.monotonic()), exclude)
        free = [worker for worker in able if self.books.free_slots(worker) > 0]
        if not free:
            return None
        worker = wanted if wanted in free else max(free, key=self.books.free_slots)
        self.books.decodes[prompt.request] = DecodeEntry(worker.name, prompt.tokens, eta)
        return worker

    def recheck(self, prompt: Prompt, policies: Policies, worker: Worker) -> None:
        """The decode side's own look at a request whose prefill has begun. Raises Overloaded when admission rejects it now."""
        arrival = Arrival(0, time.monotonic(), prompt.tokens, prompt.priority)
        reason = policies.recheck(arrival, self.books.decode_facts(worker))
        alone = len(self.books.decodes) == 1
        if reason is not None and not alone:
            raise Overloaded(reason, self._retry_after(reason, 0.0))

    def _facts(
        self, prompt: Prompt, prefills: Sequence[Worker], decodes: Sequence[Worker], prices: PromptCosts, now: float
    ) -> PoolFacts:
        step, pace = prompt.block_tokens, prices.pool.pace
        nobody = Held(0, 0)
        own = [
            self.books.prefill_facts(worker, held.now * step, max(held.soon, mine) * step, pace, now)
            for worker in prefills
            for held in [prompt.held.get(worker.registration.node.name, nobody)]
            for mine in [prompt.engines.get(worker.name, 0)]
        ]
        return PoolFacts(
            prefills=with_shared(own, prices) if self.nodes_share else own,
            decodes=[self.books.decode_facts(worker) for worker in decodes],
            expected_output=self.books.expected_output,
            decode_seconds=self.books.decode_seconds,
            decoding=self.books.decoding(),
            coming=self.books.coming(),
        )

    def _admitted_anyway(
        self,
        rejected: Rejection,
        arrival: Arrival,
        facts: PoolFacts,
        policies: Policies,
        prices: PromptCosts,
        admit: bool,
    ) -> Assignment:
        """What is only tried again was admitted before; and where nothing runs nobody is turned away for how long a step takes:
        waiting would make it no shorter."""
        choice = policies.placement.place(arrival.tokens, facts.prefills, prices)
        hopeless = rejected.reason is not Reason.VRAM and self._idle(facts)
        if admit and not hopeless:
            raise Overloaded(rejected.reason, self._retry_after(rejected.reason, choice.ttft_seconds))
        return Assignment(choice, policies.select_decode(arrival.tokens, facts))

    @staticmethod
    def _idle(facts: PoolFacts) -> bool:
        """Nothing is placed anywhere, by whichever Conductor."""
        prefilling = any(node.waiting or node.queue_seconds for node in facts.prefills)
        return not prefilling and not any(node.requests or node.coming_requests for node in facts.decodes)

    def _retry_after(self, reason: Reason, ttft_seconds: float) -> float:
        """About when it would be admitted: when the prefill queue is half as long, or the next answer has ended."""
        if reason is Reason.TTFT:
            return max(RETRY_SECONDS_MIN, ttft_seconds / 2)
        answers = max(1, len(self.books.decodes))
        return max(RETRY_SECONDS_MIN, (self.books.decode_seconds or 0.0) / answers)


def _others(workers: Sequence[Worker], exclude: set[str]) -> list[Worker]:
    """Without those that failed this request, unless there is nobody else."""
    return [worker for worker in workers if worker.name not in exclude] or list(workers)


def _note(
    decision: Decision,
    prefill: Worker | None,
    decode: Worker,
    ttft_seconds: float,
    inline: bool,
    looked_at: Sequence[Worker],
    facts: Sequence[PrefillFacts],
    prompt: Prompt,
    prices: PromptCosts,
) -> None:
    decision.prefill_worker, decision.decode_worker = prefill.name if prefill else "", decode.name
    decision.predicted_ttft, decision.inline = ttft_seconds, inline
    decision.candidates = [
        Candidate(
            worker.name,
            worker.registration.node.name,
            told.queue_seconds,
            told.prefix_tokens,
            alone.ttft_seconds,
            alone.prefix_tokens if alone.prefix_tokens > told.prefix_tokens else 0,
        )
        for i, (worker, told) in enumerate(zip(looked_at, facts, strict=True))
        for alone in [local_choice(prompt.tokens, i, told, prices)]
    ]
