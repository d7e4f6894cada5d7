"""A disaggregated cluster [xP+yD] under a trace: the Conductor's own objects drive simulated nodes, links and caches.

A request's way: decided on arrival, missing prefix fetched into the node's DRAM, prefilled (its KV streams to the decode
node meanwhile), checked once more, decoded. A chain that a queued request will compute counts as cached on its own node only.
See `outcome.py` for what is measured.
"""

import random
from dataclasses import dataclass, field

from mooncask.conductor.models.cost import DecodeModel, PrefillModel
from mooncask.conductor.models.learned import LearnedDecode, LearnedPrefill
from mooncask.conductor.models.link import Port, transfer, transfer_seconds
from mooncask.conductor.models.pipeline import LayerWise
from mooncask.conductor.scheduling.admission import make_admission
from mooncask.conductor.scheduling.board import DecodeBoard, PrefillBoard
from mooncask.conductor.scheduling.conductor import Conductor
from mooncask.conductor.scheduling.decision import Arrival, Assignment, Rejection
from mooncask.conductor.scheduling.facts import CachedPrefix
from mooncask.conductor.scheduling.placement import make_placement
from mooncask.conductor.simulator.balance import Balancer
from mooncask.conductor.simulator.batch import Sequence
from mooncask.conductor.simulator.cache import UNLIMITED, Found, NodeCache
from mooncask.conductor.simulator.cluster import Cluster
from mooncask.conductor.simulator.decode_node import DecodeNode
from mooncask.conductor.simulator.events import EventQueue
from mooncask.conductor.simulator.outcome import COMPLETED, LoadSample, Outcome
from mooncask.conductor.simulator.prefill_node import PrefillJob, PrefillNode
from mooncask.conductor.traces.request import Request
from mooncask.tiers.block import NO_HINT, Hint


@dataclass(slots=True)
class _Flight:
    """What the cluster remembers of a request between its events."""

    arrival: Arrival
    assignment: Assignment
    keys: tuple[int, ...]
    source_held: list[int]
    claimed: list[int] = field(default_factory=list)
    kv_arrives_at: float = 0.0


@dataclass(slots=True)
class _Costs:
    """The Conductor's estimates for one request: what placement may ask."""

    cluster: "DisaggregatedCluster"
    now: float

    def prefill_seconds(self, tokens: int, prefix: int) -> float:
        cluster, tail = self.cluster, self.cluster.tail_costs
        full = cluster.prefill_tokens(tokens)
        seconds = cluster.description.pipeline.seconds(cluster.prefill_model, full, min(prefix, full))
        return seconds + (tail.seconds(tokens, full) if tail is not None else 0.0)

    def occupied_seconds(self, tokens: int, prefix: int) -> float:
        full = self.cluster.prefill_tokens(tokens)
        return self.cluster.prefill_model.seconds(full, min(prefix, full)) / self.cluster.description.prefill.stages

    def fetch_seconds(self, source: int, target: int, tokens: int) -> float:
        cluster = self.cluster
        size = tokens * cluster.kv_bytes
        return transfer_seconds(size, cluster.senders[source], cluster.receivers[target], self.now)


class DisaggregatedCluster:
    """Feed it with `arrive` in the order of time through the event queue; outcomes are filled in as requests end."""

    def __init__(self, cluster: Cluster, events: EventQueue, outcomes: list[Outcome]) -> None:
        self.description, self.events, self.outcomes = cluster, events, outcomes
        self.kv_bytes = cluster.kv_bytes_per_token
        self.prefill_model = _prefill_predictor(cluster)
        self._decode_model = _decode_predictor(cluster)
        self.tail_costs = cluster.tail_costs()
        self._layers = cluster.layers
        self._classes = random.Random(cluster.seed)
        self._flights: dict[int, _Flight] = {}
        self._build_nodes()
        s = cluster.scheduling
        self.conductor = Conductor(
            make_placement(s.placement, random.Random(cluster.seed), s.balancing_threshold),
            make_admission(
                s.admission,
                cluster.slo_seconds,
                self._decode_model,
                s.decode_seconds,
                cluster.threshold,
                s.decode_recheck,
            ),
            self.prefill_model,
            self._decode_model,
            PrefillBoard(cluster.prefill_nodes),
            DecodeBoard([cluster.kv_capacity_tokens] * cluster.decode_nodes),
            cluster.cache.shared,
        )

        self.balancer = Balancer(
            events,
            self.caches,
            self.senders,
            self.receivers,
            self.kv_bytes * cluster.block_tokens,
            lambda node: self.conductor.prefills.queue_seconds(node, events.now),
        )

    def _build_nodes(self) -> None:
        cluster, groups = self.description, self.description.prefill_nodes
        speed = cluster.network.gigabytes_per_second * 1e9
        stages = cluster.prefill.stages
        self.senders = [Port(speed * stages) for _ in range(groups)]
        self.receivers = [Port(speed * stages) for _ in range(groups)]
        self._decode_receivers = [Port(speed) for _ in range(cluster.decode_nodes)]
        self.caches = [make_cache(cluster) for _ in range(groups)]
        self.prefills = [self._prefill_node() for _ in range(groups)]
        self.decodes = [
            DecodeNode(
                self.events,
                cluster.decode_costs(),
                cluster.kv_capacity_tokens,
                self._decoded,
                self._stepped,
                self._tail_seconds if self.tail_costs is not None else None,
                self._first_token,
            )
            for _ in range(cluster.decode_nodes)
        ]

    def _prefill_node(self) -> PrefillNode:
        cluster = self.description
        return PrefillNode(
            self.events,
            cluster.prefill_costs(),
            cluster.pipeline,
            LayerWise(self._layers),
            self._prefill_started,
            self._prefilled,
            self._turn if cluster.cache.shared else lambda job: None,
        )

    # --- a request's way ---------------------------------------------------------------------------------------------

    def arrive(self, number: int, request: Request) -> None:
        now, outcome = self.events.now, self.outcomes[number]
        found = [cache.find(request.hash_ids) for cache in self.caches]
        outcome.priority = self._classes.randrange(self.description.scheduling.priority_classes)
        arrival = Arrival(number, now, request.input_length, outcome.priority)
        prefixes = [
            CachedPrefix(self._tokens_of(request, hit.blocks), self._tokens_of(request, hit.computed)) for hit in found
        ]
        if self.description.cache.replicate_hot:
            self.balancer.arrived(request.hash_ids, found)
        decision = self.conductor.decide(arrival, prefixes, _Costs(self, now))
        if isinstance(decision, Rejection):
            outcome.ended, outcome.finished_at = decision.reason.name.lower(), now
            return
        self._place(request, arrival, decision, found, outcome)

    def _place(
        self, request: Request, arrival: Arrival, decision: Assignment, found: list[Found], outcome: Outcome
    ) -> None:
        choice, now = decision.prefill, self.events.now
        node, cache = choice.node, self.caches[choice.node]
        holder = choice.fetch_from
        source_held = [] if holder is None else list(request.hash_ids[: found[holder].computed])
        load_seconds = self._load_seconds(choice.prefix_tokens, found[node])
        flight = _Flight(arrival, decision, tuple(request.hash_ids), source_held)
        self._flights[arrival.request] = flight
        outcome.hit_blocks = found[node].blocks if holder is None else found[holder].computed
        outcome.prefix_tokens = choice.prefix_tokens
        outcome.fetched_tokens = choice.fetch_tokens
        outcome.prefill_node, outcome.decode_node = node, decision.decode
        outcome.ttft_expected = choice.ttft_seconds
        fetched_at = now if holder is None else self._begin_fetch(flight, holder)
        keys = request.hash_ids
        flight.claimed = list(keys[: cache.claim(keys, now, hint_of(request))])
        tokens = self.prefill_tokens(request.input_length)
        job = PrefillJob(arrival.request, tokens, choice.prefix_tokens, load_seconds, holder is None)
        self.prefills[node].place(job)
        if holder is not None:
            self.events.at(fetched_at, lambda: self._fetched(flight, job))

    def _begin_fetch(self, flight: _Flight, holder: int) -> float:
        """Occupy the links for the missing prefix; returns when it is there."""
        choice, now = flight.assignment.prefill, self.events.now
        self.caches[holder].hold(flight.source_held)
        size = choice.fetch_tokens * self.kv_bytes
        return transfer(size, self.senders[holder], self.receivers[choice.node], now)

    def _fetched(self, flight: _Flight, job: PrefillJob) -> None:
        holder = flight.assignment.prefill.fetch_from
        assert holder is not None
        self.caches[holder].release(flight.source_held)
        job.fetched = True
        self.prefills[flight.assignment.prefill.node].try_start()

    def _turn(self, job: PrefillJob) -> None:
        """The node's daemon gets what another one has beyond it by now; reading it takes the link's time."""
        flight, now = self._flights[job.request], self.events.now
        choice, outcome = flight.assignment.prefill, self.outcomes[job.request]
        held = [cache.find(flight.keys).computed for cache in self.caches]
        holder = max(range(len(held)), key=lambda i: (held[i], i == choice.node))
        offered = self._tokens_of_blocks(held[holder], flight.arrival.tokens)
        here = self._tokens_of_blocks(held[choice.node], flight.arrival.tokens)
        if choice.fetch_from is not None:
            here = max(here, choice.prefix_tokens)
        job.prefix_tokens = outcome.prefix_tokens = max(here, offered)
        if (missing := offered - here) > 0:
            arrived = transfer(missing * self.kv_bytes, self.senders[holder], self.receivers[choice.node], now)
            job.load_seconds += arrived - now
            outcome.fetched_tokens += missing
            outcome.hit_blocks = max(outcome.hit_blocks, held[holder])

    def _prefill_started(self, job: PrefillJob) -> None:
        flight, now = self._flights[job.request], self.events.now
        node, decode = flight.assignment.prefill.node, flight.assignment.decode
        self.conductor.prefills.started(node, job.request, now)
        size = job.tokens * self.kv_bytes
        streamed = transfer(size, self.senders[node], self._decode_receivers[decode], now)
        last_layer = size / self._layers / self.senders[node].bytes_per_second
        flight.kv_arrives_at = max(streamed, job.done_at + last_layer)

    def _prefilled(self, job: PrefillJob) -> None:
        flight, now = self._flights[job.request], self.events.now
        node, cache = flight.assignment.prefill.node, self.caches[flight.assignment.prefill.node]
        outcome = self.outcomes[job.request]
        outcome.prefill_seconds = job.compute_seconds
        outcome.ttft = now - outcome.arrival
        self.conductor.prefills.finished(node, job.request)
        self.conductor.observe_prefill(job.tokens, job.prefix_tokens, job.compute_seconds)
        cache.computed(flight.claimed)
        cache.release(flight.claimed)
        if self._tokens_to_decode(outcome) <= 0:
            self.conductor.decodes.withdrawn(flight.assignment.decode, job.request)
            self._complete(job.request)
            return
        to_device = job.tokens * self.kv_bytes / (self.description.network.host_to_device_gigabytes_per_second * 1e9)
        self.events.at(flight.kv_arrives_at + to_device, lambda: self._hand_over(job, now))

    def _hand_over(self, job: PrefillJob, first_token_at: float) -> None:
        flight, now = self._flights[job.request], self.events.now
        decode, outcome = flight.assignment.decode, self.outcomes[job.request]
        arrival = Arrival(job.request, now, flight.arrival.tokens, outcome.priority)
        reason = self.conductor.recheck(arrival, decode)
        if reason is not None:
            outcome.ended, outcome.finished_at = reason.name.lower(), now
            del self._flights[job.request]
            return
        self.conductor.decodes.joined(decode, job.request, now)
        sequence = Sequence(job.request, arrival.tokens, self._tokens_to_decode(outcome), first_token_at)
        self.decodes[decode].arrive(sequence)

    def _decoded(self, sequence: Sequence) -> None:
        outcome = self.outcomes[sequence.request]
        batch = self.decodes[outcome.decode_node].batch
        gaps = batch.gaps_of(sequence)
        if self.description.first_token == "decode" and self.tail_costs is None:
            outcome.ttft += float(gaps[0])
            gaps = gaps[1:]
        outcome.record_gaps(gaps)
        self.conductor.decodes.finished(outcome.decode_node, sequence.request, outcome.output_tokens, self.events.now)
        self._complete(sequence.request)

    def _first_token(self, sequence: Sequence, time: float) -> None:
        outcome = self.outcomes[sequence.request]
        outcome.ttft = time - outcome.arrival

    def _tail_seconds(self, sequence: Sequence) -> float:
        """Of the tokens behind the last full block; a prompt that ends with a block has its last token computed again."""
        tokens = sequence.context
        assert self.tail_costs is not None  # or nobody asks
        return self.tail_costs.seconds(
            tokens, (tokens - 1) // self.description.block_tokens * self.description.block_tokens
        )

    def _stepped(self, batch: int, context_tokens: int, seconds: float) -> None:
        self.conductor.observe_step(batch, context_tokens, seconds)

    def _complete(self, request: int) -> None:
        outcome = self.outcomes[request]
        outcome.ended, outcome.finished_at = COMPLETED, self.events.now
        del self._flights[request]

    # --- measures ----------------------------------------------------------------------------------------------------

    def sample_load(self) -> LoadSample:
        now, slo = self.events.now, self.description.slo_seconds
        queues = (self.conductor.prefills.queue_seconds(i, now) for i in range(len(self.prefills)))
        steps = (node.batch.step_seconds() for node in self.decodes if len(node.batch))
        return LoadSample(now, max(queues) / slo.ttft_seconds, max(steps, default=0.0) / slo.tbt_seconds)

    def prefill_tokens(self, tokens: int) -> int:
        """What prefill computes of a prompt: full blocks, where decode computes the rest."""
        block = self.description.block_tokens
        return tokens if self.tail_costs is None else tokens // block * block

    def _tokens_of(self, request: Request, blocks: int) -> int:
        """Cached tokens of so many blocks; at least the prompt's last token is always computed."""
        return self._tokens_of_blocks(blocks, request.input_length)

    def _tokens_of_blocks(self, blocks: int, input_tokens: int) -> int:
        return min(blocks * self.description.block_tokens, input_tokens - 1)

    def _tokens_to_decode(self, outcome: Outcome) -> int:
        return outcome.output_tokens - (self.description.first_token == "prefill")

    def _load_seconds(self, prefix_tokens: int, found: Found) -> float:
        """DRAM (or SSD for what lies there) to the GPUs."""
        network = self.description.network
        from_ssd = min(prefix_tokens, found.ssd * self.description.block_tokens) * self.kv_bytes
        seconds = prefix_tokens * self.kv_bytes / (network.host_to_device_gigabytes_per_second * 1e9)
        return max(seconds, from_ssd / (self.description.cache.ssd_gigabytes_per_second * 1e9))


def hint_of(request: Request) -> Hint:
    """What an engine would tell the cache's policy: conversation and turn, where the trace has them."""
    return Hint(conversation=request.conversation, turn=request.turn) if request.conversation else NO_HINT


def make_cache(cluster: Cluster) -> NodeCache:
    cache = cluster.cache
    if cache.unlimited:
        return NodeCache(UNLIMITED, 0, cache.policy)
    return NodeCache(cache.dram_tokens // cluster.block_tokens, cache.ssd_tokens // cluster.block_tokens, cache.policy)


def _prefill_predictor(cluster: Cluster) -> PrefillModel:
    exact = cluster.prefill_costs()
    return exact if cluster.model.predictor == "exact" else LearnedPrefill(exact)


def _decode_predictor(cluster: Cluster) -> DecodeModel:
    exact = cluster.decode_costs()
    return exact if cluster.model.predictor == "exact" else LearnedDecode(exact)
