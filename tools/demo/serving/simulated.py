"""The same load in the simulator, with the costs that the Conductor learned in that run: what would it have predicted? Pure.

The trace is that of the run: when each request was sent, how long prompt and answer were, and which blocks prompts share.
Blocks of answers count where a later prompt goes on with them, for decode stores them. As there, a node's daemon brings what
the other one holds when a request's turn comes, and decode computes the end of a prompt. Of the processes it takes two prefill
and two decode nodes that do not share their core, so a pool of which both work at once is slower here than there; what the
Conductor learned holds that on average.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mooncask.conductor.models.cost import LinearStep, PolynomialPrefill
from mooncask.conductor.simulator.cluster import Cache as SimulatedCache
from mooncask.conductor.simulator.cluster import Cluster, Measured, Model, Network, Objectives, Scheduling
from mooncask.conductor.simulator.simulate import simulate
from mooncask.conductor.traces.request import Request
from mooncask.tools.demo.serving.reply import Levels, Outcome, Reply

LEAST = 1e-9
"""The simulator wants a step to depend on what it reads, however little."""
NODES = 2


@dataclass(frozen=True, slots=True)
class Constants:
    """What the Conductor of a run had learned at its end, and what the machine has."""

    prefill: PolynomialPrefill
    step: LinearStep
    tail: PolynomialPrefill
    """What decode computes of a prompt."""
    kv_bytes_per_token: int
    fetch_bytes_per_second: float
    layers: int
    block_tokens: int
    node_tokens: int
    """KV tokens that a decode worker has room for."""
    dram_tokens: int


@dataclass(frozen=True, slots=True)
class Compared:
    """Mean TTFT in seconds of one run, and of its simulation."""

    measured: float
    simulated: float

    @property
    def off(self) -> float:
        """How far the simulation is from what was measured, as a share of that."""
        return abs(self.simulated - self.measured) / self.measured


def compare(
    replies: Sequence[Reply], constants: Constants, placement: str, levels: Levels, seed: int
) -> Compared | None:
    """None where nothing was answered. Who was rejected is not in the trace, so the simulated Conductor rejects nobody."""
    answered = [reply for reply in replies if reply.outcome is Outcome.ANSWERED]
    if not answered:
        return None
    trace = trace_of(answered, constants.block_tokens)
    result = simulate(_cluster(constants, answered, placement, levels, seed), trace)
    measured = sum(reply.ttft for reply in answered) / len(answered)
    return Compared(measured, result.mean("ttft"))


def trace_of(replies: Sequence[Reply], block_tokens: int) -> list[Request]:
    """Full blocks only: the rest of a prompt is in nobody's store. Decode stores those of its answer, but for the last token."""
    names: dict[tuple[int, ...], int] = {}
    requests = []
    for reply in sorted(replies, key=lambda one: one.sent):
        whole = reply.prompt_ids + reply.answer_ids[:-1]
        beginnings = [whole[: (i + 1) * block_tokens] for i in range(len(whole) // block_tokens)]
        ids = tuple(names.setdefault(beginning, len(names)) for beginning in beginnings)
        requests.append(Request(round(reply.sent * 1e3), len(reply.prompt_ids), max(1, len(reply.answer_ids)), ids))
    return requests


def _cluster(constants: Constants, replies: Sequence[Reply], placement: str, levels: Levels, seed: int) -> Cluster:
    block = constants.block_tokens
    full = [len(r.prompt_ids) // block * block for r in replies]
    seen = [(tokens, min(tokens, r.cached_tokens)) for tokens, r in zip(full, replies, strict=True)]
    prefill = not_negative_prefill(constants.prefill, seen)
    ends = [(n, (n - 1) // block * block) for n in (len(r.prompt_ids) for r in replies)]
    tail = not_negative_prefill(constants.tail, ends)
    step = constants.step
    return Cluster(
        prefill_nodes=NODES,
        decode_nodes=NODES,
        block_tokens=constants.block_tokens,
        vram_tokens=constants.node_tokens,
        first_token="decode",
        seed=seed,
        model=Model(
            costs="measured",
            measured=Measured(
                kv_bytes_per_token=constants.kv_bytes_per_token,
                layers=constants.layers,
                prefill_linear=max(LEAST, prefill.linear),
                prefill_quadratic=prefill.quadratic,
                prefill_fixed=prefill.fixed,
                step_fixed=max(LEAST, step.fixed),
                step_per_request=max(0.0, step.per_request),
                step_per_token=max(LEAST, step.per_token),
                tail_linear=tail.linear,
                tail_quadratic=tail.quadratic,
                tail_fixed=tail.fixed,
            ),
        ),
        network=Network(
            gigabytes_per_second=constants.fetch_bytes_per_second / 1e9,
            host_to_device_gigabytes_per_second=constants.fetch_bytes_per_second / 1e9,
        ),
        cache=SimulatedCache(dram_tokens=constants.dram_tokens, shared=True),
        scheduling=Scheduling(placement=placement),
        slo=Objectives(ttft_seconds=levels.ttft_seconds, tbt_seconds=levels.tbt_seconds, tbt_metric="p90"),
    )


def not_negative_prefill(learned: PolynomialPrefill, seen: Sequence[tuple[int, int]]) -> PolynomialPrefill:
    """About the same seconds for the requests that were seen, (tokens, prefix) each, without a negative coefficient."""
    terms = np.array([[1.0, n - p, float((n - p) * (n + p))] for n, p in seen])
    wanted = np.array([learned.seconds(n, p) for n, p in seen])
    kept = [0, 1, 2]
    while kept:
        scale = terms[:, kept].max(axis=0) + LEAST
        found = np.linalg.lstsq(terms[:, kept] / scale, wanted, rcond=None)[0] / scale
        if (found >= 0).all():
            whole = dict(zip(kept, map(float, found), strict=True))
            return PolynomialPrefill(whole.get(1, 0.0), whole.get(2, 0.0), whole.get(0, 0.0))
        kept.pop(int(np.argmin(found * scale)))
    return PolynomialPrefill(0.0, 0.0)
