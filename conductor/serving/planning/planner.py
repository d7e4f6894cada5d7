"""The planner of a running Conductor: hears of every request that ends, and at the end of each slot recommends, tells the
scale hook, and changes roles if it is asked to. What it has recorded lies in a file, if one is named, and outlives the process.
"""

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mooncask.client.worker_api import Role
from mooncask.conductor.serving.config import PlanSection
from mooncask.conductor.serving.dispatch.dispatcher import LiveDispatcher
from mooncask.conductor.serving.dispatch.history import Decision
from mooncask.conductor.serving.dispatch.pools import Worker
from mooncask.conductor.serving.planning.hooks import ScaleHook
from mooncask.conductor.serving.planning.load import LoadRecord
from mooncask.conductor.serving.planning.plan import Member, Outlook, Recommendation, recommend
from mooncask.errors import ConfigError, MooncaskError

log = logging.getLogger(__name__)

MODELS_MAX = 64
CHECKS_A_SLOT = 30
SHOWN_SLOTS = 96


class PlanPage(msgspec.Struct, frozen=True, kw_only=True):
    """GET /-/v1/plan. `loads`: by model, of the last slots, oldest first: prefill and decode work in workers."""

    apply: bool
    slot_seconds: float
    recommendations: list[Recommendation]
    loads: dict[str, list[tuple[float, float]]]
    hook: str
    """How the last call of the scale hook ended; empty before any."""
    hook_skipped: int


@dataclass(slots=True)
class Planner:
    """Belongs to the event loop's thread; `clock` in seconds since 1970."""

    dispatcher: LiveDispatcher
    section: PlanSection
    clock: Callable[[], float] = time.time
    hook: ScaleHook = field(init=False)
    records: dict[str, LoadRecord] = field(default_factory=dict)
    recommended: dict[str, Recommendation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.hook = ScaleHook(self.section.hook_command, self.section.hook_url, self.section.hook_seconds)
        self.dispatcher.history.on_end.append(self.ended)

    def ended(self, decision: Decision) -> None:
        """A request's work: its prefill as the model of costs has it, and the share of a decode worker that it had."""
        costs = self.dispatcher.costs.get(decision.model)
        record = self._record(decision.model)
        if costs is None or record is None:
            return
        prefill = 0.0 if decision.inline else costs.prefill_seconds(decision.prompt_tokens, decision.matched_tokens)
        decoding = max(0.0, decision.seconds - decision.ttft) if decision.ttft else 0.0
        if decision.rejected:
            decoding = self.dispatcher.books.decode_seconds or 0.0
        record.add(prefill, decoding * self._share(decision), self.clock())

    async def step(self) -> None:
        """What is to be done now; at the end of a slot a new recommendation."""
        now = self.clock()
        ended = [model for model, record in self.records.items() if record.advance(now)]
        for model in ended:
            await self._plan(model, now)
        if ended and self.section.record:
            await self._write()

    def page(self) -> PlanPage:
        return PlanPage(
            apply=self.section.apply,
            slot_seconds=self.section.slot_seconds,
            recommendations=list(self.recommended.values()),
            loads={model: record.past[-SHOWN_SLOTS:] for model, record in self.records.items()},
            hook=self.hook.last,
            hook_skipped=self.hook.skipped,
        )

    async def _write(self) -> None:
        try:
            await asyncio.to_thread(write_records, Path(self.section.record), dict(self.records))
        except OSError as exc:
            log.warning("the load that was recorded can't be written to %s: %s", self.section.record, exc)

    async def _plan(self, model: str, now: float) -> None:
        members = [self._member(worker) for worker in self.dispatcher.pools.all() if worker.registration.model == model]
        record = self.records[model]
        outlook = Outlook(
            record.slots_a_day, self.section.horizon_slots, self.section.warm_up_seconds / record.slot_seconds
        )
        told = await asyncio.to_thread(recommend, model, now, record.loads(), members, outlook)
        if told is None:
            self.recommended.pop(model, None)
            return
        self.recommended[model] = told
        self.hook.tell(msgspec.json.encode(told))
        if told.changes:
            log.info("model %s: %d should prefill and %d decode", model, told.prefill, told.decode)
        for change in told.changes if self.section.apply else ():
            if not change.restart:
                with contextlib.suppress(MooncaskError):  # it has gone meanwhile
                    self.dispatcher.pools.want_role(change.worker, change.role)

    def _member(self, worker: Worker) -> Member:
        busy = worker.report.queued_tokens if worker.role is Role.PREFILL else worker.report.context_tokens
        role = worker.wanted_role or worker.role
        restart = not worker.registration.may_change_role
        return Member(worker.name, role, float(busy), not worker.report.draining, restart)

    def _share(self, decision: Decision) -> float:
        """Of the worker that decoded it, or of the largest one, what this answer had: a place, or more by the KV that fits."""
        workers = [w.registration for w in self.dispatcher.pools.all() if w.registration.model == decision.model]
        ran = [told for told in workers if told.name == decision.decode_worker] or workers
        tokens = decision.prompt_tokens + decision.output_tokens
        shares = [max(1 / told.slots, tokens / told.kv_tokens if told.kv_tokens else 0.0) for told in ran]
        return min(1.0, min(shares, default=1.0))

    def _record(self, model: str) -> LoadRecord | None:
        record = self.records.get(model)
        if record is None and len(self.records) < MODELS_MAX:
            record = self.records[model] = LoadRecord(self.section.slot_seconds)
        return record


@contextlib.asynccontextmanager
async def planning(dispatcher: LiveDispatcher, section: PlanSection) -> AsyncIterator[Planner]:
    """A planner that runs while this is open. Raises ConfigError for a record that is none."""
    planner = Planner(dispatcher, section)
    if section.record:
        planner.records = read_records(Path(section.record), section.slot_seconds, planner.clock())
    task = asyncio.create_task(_run(planner))
    try:
        yield planner
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await planner.hook.close()


async def _run(planner: Planner) -> None:
    while True:
        await asyncio.sleep(planner.section.slot_seconds / CHECKS_A_SLOT)
        try:
            await planner.step()
        except Exception:  # the top of the task: planning goes on at the next slot
            log.exception("no plan was made")


def write_records(path: Path, records: dict[str, LoadRecord]) -> None:
    """Whole or not at all. Blocks."""
    told = {
        model: {"slot_seconds": one.slot_seconds, "first_slot": one.first_slot, "past": one.past}
        for model, one in records.items()
    }
    new = path.with_suffix(path.suffix + ".new")
    with new.open("w") as file:
        json.dump(told, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


class _Recorded(msgspec.Struct, frozen=True):
    slot_seconds: float
    first_slot: int | None
    past: list[tuple[float, float]]


def read_records(path: Path, slot_seconds: float, now: float) -> dict[str, LoadRecord]:
    """What an earlier run has written; nothing where there is no file, or its slots were of another length. Raises ConfigError."""
    try:
        told = msgspec.json.decode(path.read_bytes(), type=dict[str, _Recorded])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as exc:
        raise ConfigError("plan.record", str(path), f"can't be read: {exc}; move it away to begin anew") from exc
    records = {}
    for model, one in told.items():
        if one.slot_seconds == slot_seconds and one.first_slot is not None:
            records[model] = LoadRecord(slot_seconds)
            records[model].restore(one.first_slot, one.past)
            records[model].resume(now)
    return records
