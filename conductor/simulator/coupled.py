"""A coupled cluster [xM]: every node prefills and decodes, as vLLM does.

`whole`: waiting prompts are prefilled one at a time before the next decode step, which stalls everybody in the batch.
`chunked`: each step carries up to `token_budget` tokens, those that decode first and prompt chunks with the rest. Prefix
caching keeps KV in what the GPUs have beside the running requests. Requests are spread by the chosen placement.
"""

import math
import random
from collections import deque
from dataclasses import dataclass

from mooncask.conductor.scheduling.board import PrefillBoard
from mooncask.conductor.scheduling.facts import PrefillFacts
from mooncask.conductor.scheduling.placement import make_placement
from mooncask.conductor.simulator.batch import Batch, Sequence
from mooncask.conductor.simulator.cache import NodeCache
from mooncask.conductor.simulator.cluster import Cluster
from mooncask.conductor.simulator.events import Action, EventQueue
from mooncask.conductor.simulator.outcome import COMPLETED, LoadSample, Outcome
from mooncask.conductor.traces.request import Request


@dataclass(slots=True, eq=False)
class _Prompt:
    """A request whose prefill is not done; `reached` tokens of it are."""

    number: int
    request: Request
    claimed: list[int]
    reached: int
    begun: bool = False
    seconds: float = 0.0


class CoupledNode:
    """One node's iterations, each an event; runs of pure decoding are one event together."""

    def __init__(self, cluster: Cluster, events: EventQueue, outcomes: list[Outcome], board: PrefillBoard, index: int):
        self._cluster, self._events, self._outcomes = cluster, events, outcomes
        self._board, self._index = board, index
        self._prefill = cluster.prefill_costs()
        self.batch = Batch(cluster.decode_costs(), cluster.kv_capacity_tokens)
        self.cache = gpu_cache(cluster)
        self.waiting: deque[_Prompt] = deque()
        self._claims: dict[int, list[int]] = {}
        self._preempted: deque[Sequence] = deque()
        self._idle = True
        self._busy_until = 0.0
        self._planned_steps = 0
        self._generation = 0

    def arrive(self, number: int, request: Request) -> None:
        blocks = self.cache.find(request.hash_ids).blocks
        prefix = min(blocks * self._cluster.block_tokens, request.input_length - 1)
        outcome = self._outcomes[number]
        outcome.hit_blocks, outcome.prefix_tokens = blocks, prefix
        outcome.prefill_node = outcome.decode_node = self._index
        keys = request.hash_ids if self._cluster.coupled.prefix_caching else []
        claimed = list(keys[: self.cache.claim(keys, self._events.now)])
        self._board.placed(self._index, number, self._prefill.seconds(request.input_length, prefix))
        self.waiting.append(_Prompt(number, request, claimed, prefix))
        self._interrupt()

    def _interrupt(self) -> None:
        """Cut a run of pure decoding at the next step boundary, or begin if the node is idle."""
        now = self._events.now
        if self._idle:
            self.batch.time = now
            self._iterate()
        elif self._planned_steps > 1 and now < self._busy_until:
            steps = self.batch.steps_until(now)
            if steps < self._planned_steps:
                self._plan_decode(steps)

    def _iterate(self) -> None:
        """At a boundary: what the node does next."""
        self._idle = False
        self._fit_into_memory()
        if self.waiting and self._fits(self.waiting[0]):
            if self._cluster.coupled.batching == "chunked":
                self._plan_chunk()
            else:
                self._plan_prompt()
        elif len(self.batch):
            self._plan_decode(self.batch.steps_to_change())
        else:
            self._idle = True

    def _fit_into_memory(self) -> None:
        while len(self.batch) and not self.batch.steps_to_change():
            self._preempted.appendleft(self.batch.preempt_youngest())
        while self._preempted and self.batch.has_room(self._preempted[0]):
            self.batch.join(self._preempted.popleft())

    def _fits(self, prompt: _Prompt) -> bool:
        return (
            self.batch.context + prompt.request.input_length + len(self.batch) + 1 <= self._cluster.kv_capacity_tokens
        )

    # --- the three kinds of iteration --------------------------------------------------------------------------------

    def _plan_decode(self, steps: int) -> None:
        self._planned_steps = steps
        self._at(self.batch.time + self.batch.seconds_of(steps), self._decoded)

    def _decoded(self) -> None:
        self.batch.advance(self._planned_steps)
        self._end_sequences()
        self._iterate()

    def _plan_prompt(self) -> None:
        prompt = self.waiting[0]
        prompt.seconds = self._prefill.seconds(prompt.request.input_length, prompt.reached)
        self._begin(prompt)
        self._planned_steps = 0
        self._at(self.batch.time + prompt.seconds, self._prompt_done)

    def _prompt_done(self) -> None:
        prompt = self.waiting.popleft()
        self.batch.stall(prompt.seconds)
        self._first_token(prompt)
        self._iterate()

    def _plan_chunk(self) -> None:
        prompt = self.waiting[0]
        if not prompt.begun:
            self._begin(prompt)
        budget = max(1, self._cluster.coupled.token_budget - len(self.batch))
        end = min(prompt.request.input_length, prompt.reached + budget)
        seconds = self._prefill.seconds(end, prompt.reached)
        step = self.batch.step_seconds() if len(self.batch) else 0.0
        self._planned_steps = 0
        self._at(self.batch.time + step + seconds, lambda: self._chunk_done(prompt, end, seconds))

    def _chunk_done(self, prompt: _Prompt, end: int, seconds: float) -> None:
        step = self.batch.step_seconds() if len(self.batch) else 0.0
        if len(self.batch):
            self.batch.advance(1, seconds)
        else:
            self.batch.time += seconds
        prompt.reached, prompt.seconds = end, prompt.seconds + seconds + step
        if end == prompt.request.input_length:
            self.waiting.popleft()
            self._first_token(prompt)
        self._end_sequences()
        self._iterate()

    # --- a request's marks -------------------------------------------------------------------------------------------

    def _at(self, time: float, action: Action) -> None:
        self._generation += 1
        generation = self._generation
        self._busy_until = max(self._events.now, time)
        self._events.at(self._busy_until, lambda: action() if generation == self._generation else None)

    def _begin(self, prompt: _Prompt) -> None:
        prompt.begun = True
        self._board.started(self._index, prompt.number, self._events.now)

    def _first_token(self, prompt: _Prompt) -> None:
        number, outcome = prompt.number, self._outcomes[prompt.number]
        self._board.finished(self._index, number)
        outcome.ttft = self.batch.time - outcome.arrival
        outcome.prefill_seconds = prompt.seconds
        self.cache.computed(prompt.claimed)
        self._claims[number] = prompt.claimed
        if outcome.output_tokens <= 1:
            self._complete(number)
            return
        self.batch.join(Sequence(number, prompt.request.input_length, outcome.output_tokens - 1, self.batch.time))

    def _end_sequences(self) -> None:
        for sequence in self.batch.pop_ended():
            self._outcomes[sequence.request].record_gaps(self.batch.gaps_of(sequence))
            self._complete(sequence.request)

    def _complete(self, number: int) -> None:
        outcome = self._outcomes[number]
        outcome.ended, outcome.finished_at = COMPLETED, self.batch.time
        self.cache.release(self._claims.pop(number))


class CoupledCluster:
    """Feed it with `arrive` in the order of time through the event queue; outcomes are filled in as requests end."""

    def __init__(self, cluster: Cluster, events: EventQueue, outcomes: list[Outcome]) -> None:
        self.description, self._events = cluster, events
        self._board = PrefillBoard(cluster.coupled_nodes)
        self.nodes = [CoupledNode(cluster, events, outcomes, self._board, i) for i in range(cluster.coupled_nodes)]
        self._prefill_model = cluster.prefill_costs()
        s = cluster.scheduling
        self._placement = make_placement(s.placement, random.Random(cluster.seed), s.balancing_threshold)

    def arrive(self, number: int, request: Request) -> None:
        now, tokens = self._events.now, request.input_length
        facts = [
            PrefillFacts(
                self._board.queue_seconds(i, now),
                min(node.cache.find(request.hash_ids).blocks * self.description.block_tokens, tokens - 1),
                waiting=self._board.waiting(i),
            )
            for i, node in enumerate(self.nodes)
        ]
        self.nodes[self._placement.place(tokens, facts, self).node].arrive(number, request)

    def prefill_seconds(self, tokens: int, prefix: int) -> float:
        return self._prefill_model.seconds(tokens, prefix)

    def occupied_seconds(self, tokens: int, prefix: int) -> float:
        return self._prefill_model.seconds(tokens, prefix)

    def fetch_seconds(self, source: int, target: int, tokens: int) -> float:
        return math.inf

    def sample_load(self) -> LoadSample:
        now, slo = self._events.now, self.description.slo_seconds
        queues = (self._board.queue_seconds(i, now) for i in range(len(self.nodes)))
        steps = (node.batch.step_seconds() for node in self.nodes if len(node.batch))
        return LoadSample(now, max(queues) / slo.ttft_seconds, max(steps, default=0.0) / slo.tbt_seconds)


def gpu_cache(cluster: Cluster) -> NodeCache:
    """Prefix caching shares the GPUs' KV memory with the running requests, whose blocks are held in it."""
    blocks = cluster.kv_capacity_tokens // cluster.block_tokens
    return NodeCache(blocks if cluster.coupled.prefix_caching else 0, 0, cluster.cache.policy)
