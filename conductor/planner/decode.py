"""How many decode nodes keep an objective for the time between tokens: each request's own gaps, on the simulator's nodes.

Requests come when their KV has arrived, go to the node with the least predicted step that has room
(`scheduling/decode.py`), and are batched continuously within its KV memory (`simulator/decode_node.py`), exact to the token.
Steps get longer with the batch and with what its requests have read so far, so that more nodes make shorter gaps; the
least number is found by bisection.

Not here: what the prefill side costs (`planner.py`), admission and rejects: all requests are decoded, however late.
"""

import math
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from mooncask.conductor.models.cost import LinearStep
from mooncask.conductor.planner.queue import Seconds
from mooncask.conductor.scheduling.decode import emptiest, select_decode
from mooncask.conductor.scheduling.facts import DecodeFacts
from mooncask.conductor.simulator.batch import Gaps, Sequence
from mooncask.conductor.simulator.decode_node import DecodeNode
from mooncask.conductor.simulator.events import EventQueue
from mooncask.conductor.traces.request import Request
from mooncask.errors import BadArgument

TbtMetric = Literal["longest-tenth", "p90"]
TBT_METRICS: tuple[TbtMetric, ...] = ("longest-tenth", "p90")
SHARE = 0.9
"""Share of the requests whose TBT is to be kept."""


@dataclass(frozen=True, slots=True)
class TbtObjective:
    """Nine tenths of the requests are to have a TBT of at most `tbt_seconds`: the mean of the longest tenth of their gaps,
    or their P90."""

    tbt_seconds: float
    metric: TbtMetric = "longest-tenth"

    def __post_init__(self) -> None:
        if not 0 < self.tbt_seconds < math.inf:
            raise BadArgument("--slo-tbt", str(self.tbt_seconds), "above 0 seconds")
        if self.metric not in TBT_METRICS:
            raise BadArgument("--tbt-metric", repr(self.metric), f"one of {', '.join(TBT_METRICS)}")


@dataclass(frozen=True, slots=True)
class DecodeHardware:
    """One decode node: the seconds of a step, and the tokens of KV that fit beside the weights."""

    step: LinearStep
    capacity_tokens: int


@dataclass(frozen=True, slots=True)
class Prefilled:
    """When each request's first token is there, in seconds, and when its KV is: from then on it can be decoded."""

    first_token: Seconds
    ready: Seconds


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The least nodes that keep the objective; where none do (`meets` false), as many as there are.

    `tbt` is what nine tenths of the requests stay below, `kv_peak` the fullest node's share of its KV memory at the end of a step.
    """

    nodes: int
    tbt: float
    tbt_mean: float
    kv_peak: float
    dollars_per_month: float
    meets: bool


@dataclass(frozen=True, slots=True)
class Decoded:
    """What one number of nodes gives; `tbts` are of the requests that have more than one token, in order of their end."""

    tbts: Seconds
    kv_peak: float


def plan_decode(
    requests: Rows[Request],
    prefilled: Prefilled,
    hardware: DecodeHardware,
    objective: TbtObjective,
    *,
    nodes_max: int,
    dollars_per_node_month: float,
) -> DecodePlan:
    """The least number of nodes up to `nodes_max`.

    Raises BadArgument when nothing is to be decoded, or a request does not fit into a node.
    """
    check_decodable(requests, hardware)
    tried: dict[int, Decoded] = {}

    def within(nodes: int) -> bool:
        tried[nodes] = decode(requests, prefilled, hardware, nodes, objective.metric)
        return float(np.quantile(tried[nodes].tbts, SHARE)) <= objective.tbt_seconds

    low, high = 1, nodes_max
    meets = within(high)
    while meets and low < high:
        middle = (low + high) // 2
        if within(middle):
            high = middle
        else:
            low = middle + 1
    found = tried[high]
    tbt, mean = float(np.quantile(found.tbts, SHARE)), float(found.tbts.mean())
    return DecodePlan(high, tbt, mean, found.kv_peak, high * dollars_per_node_month, meets)


def check_decodable(requests: Rows[Request], hardware: DecodeHardware) -> None:
    """Raises BadArgument when a time between tokens can't be planned for these."""
    if all(request.output_length <= 1 for request in requests):
        raise BadArgument("--slo-tbt", "given", "the trace has no output lengths above 1, so nothing to plan it by")
    largest = max(request.input_length + request.output_length for request in requests)
    if largest > hardware.capacity_tokens:
        raise BadArgument(
            "a decode node's KV memory",
            f"{hardware.capacity_tokens} tokens",
            f"at least {largest}, which the longest request needs",
        )


def decode(
    requests: Rows[Request], prefilled: Prefilled, hardware: DecodeHardware, nodes: int, metric: TbtMetric
) -> Decoded:
    """All requests on that many nodes."""
    events = EventQueue()
    places: dict[int, DecodeNode] = {}
    tbts: list[float] = []

    def ended(sequence: Sequence) -> None:
        tbts.append(_tbt(places.pop(sequence.request).batch.gaps_of(sequence), metric))

    def stepped(batch: int, context: int, seconds: float) -> None:
        """The costs are known."""

    pool = [DecodeNode(events, hardware.step, hardware.capacity_tokens, ended, stepped) for _ in range(nodes)]

    def arrive(number: int) -> None:
        request = requests[number]
        facts = [_facts(node, hardware.capacity_tokens) for node in pool]
        chosen = select_decode(request.input_length, request.output_length, facts, hardware.step)
        node = places[number] = pool[emptiest(facts) if chosen is None else chosen.node]
        first_token = float(prefilled.first_token[number])
        node.arrive(Sequence(number, request.input_length, request.output_length - 1, first_token))

    for number in np.argsort(prefilled.ready, kind="stable").tolist():
        if requests[number].output_length > 1:
            events.at(float(prefilled.ready[number]), partial(arrive, number))
    events.run()
    peak = max(node.context_peak for node in pool) / hardware.capacity_tokens
    return Decoded(np.array(tbts), peak)


def _facts(node: DecodeNode, capacity_tokens: int) -> DecodeFacts:
    waiting = sum(sequence.context for sequence in node.waiting)
    return DecodeFacts(len(node.batch), node.batch.context, capacity_tokens, len(node.waiting), waiting)


def _tbt(gaps: Gaps, metric: TbtMetric) -> float:
    if metric == "p90":
        return float(np.quantile(gaps, 0.9))
    ordered = np.sort(gaps)
    return float(ordered[-max(1, ordered.size // 10) :].mean())
