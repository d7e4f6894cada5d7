"""What the JSON pages say: values for people and programs, made from the dispatcher's own. No I/O.

Durations are seconds, times of day seconds since 1970. Fields may be added.
"""

import time
from collections.abc import Iterable, Sequence

import msgspec

from mooncask.client.worker_api import Role
from mooncask.conductor.serving.dispatch.dispatcher import LiveDispatcher
from mooncask.conductor.serving.dispatch.history import Decision
from mooncask.conductor.serving.dispatch.policy_table import PolicySettings
from mooncask.conductor.serving.dispatch.pools import Worker
from mooncask.conductor.serving.planning.planner import PlanPage

PAIRS_SHOWN = 400
"""Of each calibration: the newest."""
REQUESTS_SHOWN = 50


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One object of an answer."""


class WorkerRow(Row, frozen=True, kw_only=True):
    """A worker as it reported last; `queue_seconds` of a prefill worker is what placement reckons with."""

    name: str
    role: str
    wanted_role: str = ""
    """Another role that it was told to take; empty: none."""
    kind: str
    node: str
    address: str
    draining: bool
    shunned: bool
    """It failed a call a moment ago and is passed over while others are there."""
    heard_seconds: float
    failures: int
    waiting: int
    running: int
    queued_tokens: int
    context_tokens: int
    slots: int
    free_slots: int
    queue_seconds: float = 0.0
    slowness: float = 1.0


class PoolRow(Row, frozen=True, kw_only=True):
    """The workers of one model, and what was learned of their speed."""

    model: str
    positions_max: int
    block_tokens: int
    prefill_tokens_per_second: float
    """For a prompt of ordinary length with nothing cached; 0 before any was served."""
    step_seconds: float
    """A decode step with one request of 1,024 tokens; 0 before any."""
    workers: list[WorkerRow]


class ClassRow(Row, frozen=True, kw_only=True):
    """The service level of a class, from the lowest class to the highest."""

    name: str
    ttft_seconds: float
    tbt_seconds: float


class CalibrationRow(Row, frozen=True, kw_only=True):
    """(predicted, happened) in seconds, oldest first. `error`: the mean of |predicted - happened| / happened; `bias`: of the
    same with its sign; both 0 without pairs."""

    pairs: list[tuple[float, float]]
    error: float
    bias: float


class FetchRow(Row, frozen=True, kw_only=True):
    """What is reckoned with for a worker that loads from a tier, and from how many bytes that was measured; 0: as configured, or
    as the pool's others are."""

    model: str
    worker: str
    tier: str
    bytes_per_second: float
    measured_bytes: float


class PauseRow(Row, frozen=True, kw_only=True):
    """How often and how long decode stood still for prefills on its node. `slowdown`: how many times longer a prefill takes
    beside a decoding batch, as learned."""

    policy: str
    pauses: int
    seconds: float
    slowdown: float


class Calibration(Row, frozen=True, kw_only=True):
    """`inline`: TTFT of requests whose prompt decode computed itself; `ttft`: of all others."""

    ttft: CalibrationRow
    inline: CalibrationRow
    step: CalibrationRow
    fetch: list[FetchRow]
    pause: PauseRow


class RequestPage(Row, frozen=True, kw_only=True):
    """One request's way, and by which policies and levels it was judged."""

    request: Decision
    placement: str
    admission: str
    service_level: ClassRow


class HotRow(Row, frozen=True, kw_only=True):
    """A prefix that is read much, by the key of its last shared block."""

    key: str
    model: str
    tokens: int
    reads_per_second: float
    nodes: list[str]


def hot_rows(dispatcher: LiveDispatcher) -> list[HotRow]:
    """The hottest first; a chain and the longer ones that it is a part of stand apart."""
    return [
        HotRow(key=key.hex(), model=chain.model, tokens=chain.tokens, reads_per_second=rate, nodes=chain.holders)
        for key, chain, rate in dispatcher.hot.rows()
        if rate > 0.001
    ]


class CacheRow(Row, frozen=True, kw_only=True):
    """One context cache; `cost` in the currency of the configuration's prices, so far."""

    id: str
    tenant: str
    model: str
    status: str
    tokens: int
    expires_at: float
    cost: float


class Overview(Row, frozen=True, kw_only=True):
    """All that the dashboard shows."""

    at: float
    version: str
    up_seconds: float
    draining: bool
    running: int
    waiting: int
    placement: str
    admission: str
    classes: list[ClassRow]
    outcomes: dict[str, int]
    rejections: dict[str, int]
    prompt_tokens: int
    matched_tokens: int
    cached_tokens: int
    output_tokens: int
    retries: int
    ttft: list[float]
    """Of the newest requests that began, oldest first."""
    pools: list[PoolRow]
    requests: list[Decision]
    calibration: Calibration
    quotas: dict[str, dict[str, tuple[int, int]]]
    """By tenant and kind of quota: tokens used, and the limit."""
    hot: list[HotRow]
    caches: list[CacheRow]
    currency: str
    plan: PlanPage | None


def class_rows(settings: PolicySettings) -> list[ClassRow]:
    return [
        ClassRow(name=name, ttft_seconds=slo.ttft_seconds, tbt_seconds=slo.tbt_seconds)
        for name, slo in settings.classes.items()
    ]


def request_page(decision: Decision, settings: PolicySettings) -> RequestPage:
    rows = {row.name: row for row in class_rows(settings)}
    level = rows.get(decision.service_class, rows[settings.default_class])
    return RequestPage(
        request=decision, placement=settings.placement, admission=settings.admission, service_level=level
    )


def pool_rows(dispatcher: LiveDispatcher) -> list[PoolRow]:
    """By the names of models and workers."""
    workers, now = dispatcher.pools.all(), time.monotonic()
    models = sorted({worker.registration.model for worker in workers})
    return [_pool(dispatcher, model, workers, now) for model in models]


def calibration_row(pairs: Iterable[tuple[float, float]]) -> CalibrationRow:
    known = [(predicted, happened) for predicted, happened in pairs if happened > 0]
    offs = [(predicted - happened) / happened for predicted, happened in known]
    count = max(1, len(offs))
    return CalibrationRow(
        pairs=known[-PAIRS_SHOWN:], error=sum(abs(off) for off in offs) / count, bias=sum(offs) / count
    )


def calibration(dispatcher: LiveDispatcher) -> Calibration:
    history, pausing = dispatcher.history, dispatcher.pausing
    return Calibration(
        ttft=calibration_row(history.calibration),
        inline=calibration_row(history.inline_calibration),
        step=calibration_row(history.step_calibration),
        fetch=fetch_rows(dispatcher),
        pause=PauseRow(
            policy=pausing.settings.policy,
            pauses=pausing.pauses,
            seconds=pausing.paused_seconds,
            slowdown=pausing.slowdown.factor,
        ),
    )


def fetch_rows(dispatcher: LiveDispatcher) -> list[FetchRow]:
    """By the names of models and workers."""
    rows = []
    for model, costs in sorted(dispatcher.costs.items()):
        names = sorted(worker.name for worker in dispatcher.pools.all() if worker.registration.model == model)
        for told in costs.rates.rows(names):
            row = FetchRow(
                model=model,
                worker=told.worker,
                tier=told.tier,
                bytes_per_second=told.bytes_per_second,
                measured_bytes=told.measured_bytes,
            )
            rows.append(row)
    return rows


def _pool(dispatcher: LiveDispatcher, model: str, workers: Sequence[Worker], now: float) -> PoolRow:
    mine = sorted((w for w in workers if w.registration.model == model), key=lambda w: (w.role, w.name))
    costs = dispatcher.costs.get(model)
    pace = costs.pace if costs is not None else 0.0
    return PoolRow(
        model=model,
        positions_max=dispatcher.positions_max(model),
        block_tokens=dispatcher.pools.block_tokens(model),
        prefill_tokens_per_second=1 / pace if pace else 0.0,
        step_seconds=costs.decode.seconds(1, 1024) if costs is not None else 0.0,
        workers=[_worker(dispatcher, worker, pace, now) for worker in mine],
    )


def _worker(dispatcher: LiveDispatcher, worker: Worker, pace: float, now: float) -> WorkerRow:
    told, report, prefills = worker.registration, worker.report, worker.role is Role.PREFILL
    wanted = worker.wanted_role
    queue = dispatcher.books.prefill_facts(worker, 0, 0, pace, now).queue_seconds if prefills else 0.0
    return WorkerRow(
        name=worker.name,
        role=worker.role.value,
        wanted_role=wanted.value if wanted is not None and wanted is not worker.role else "",
        kind=told.kind.value,
        node=told.node.name,
        address=told.address,
        draining=report.draining,
        shunned=worker.shunned(now),
        heard_seconds=now - worker.heard,
        failures=worker.failures,
        waiting=report.waiting,
        running=report.running,
        queued_tokens=report.queued_tokens,
        context_tokens=report.context_tokens,
        slots=told.slots,
        free_slots=report.free_slots,
        queue_seconds=queue,
        slowness=dispatcher.books.slowness.get(worker.name, 1.0),
    )
