"""Who is there: workers as they registered and as they reported last. Soft state, lost and told anew with each start.

Not here: what was placed on them (`books.py`), and speaking to them (`worker_client.py`). No clock: the caller gives the
time, in seconds on the monotonic clock.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from mooncask.client.worker_api import Leave, Registration, Report, Reported, Role, Sampling, WorkerKind
from mooncask.conductor.serving.dispatch.ending import Ending
from mooncask.errors import BadRequest, NoSuchModel

log = logging.getLogger(__name__)

WORKERS_MAX = 4096
SHUNNED_SECONDS = 1.0
"""A worker that failed a call gets nothing for so long, unless there is nobody else."""


@dataclass(slots=True, eq=False)
class Worker:
    """One incarnation of one worker."""

    registration: Registration
    heard: float
    report: Report
    wanted_role: Role | None = None
    failed_at: float = -1e9
    failures: int = 0
    full: bool = False
    """It has bounced an answer since its last report."""
    gone: Ending = field(default_factory=Ending)
    """Set when it has left, was replaced, or is not heard of any more: calls to it end."""

    @property
    def name(self) -> str:
        return self.registration.name

    @property
    def role(self) -> Role:
        return self.report.role

    def alive(self, now: float) -> bool:
        return now - self.heard <= self.registration.gone_seconds

    def can_be_continued(self, sampling: Sampling) -> bool:
        """Whether another worker can go on with an answer of this one: not where random draws are counted from its start."""
        return self.registration.kind is WorkerKind.MOONCASK or not sampling.seeded or sampling.temperature == 0

    def shunned(self, now: float) -> bool:
        return now - self.failed_at < SHUNNED_SECONDS


@dataclass(slots=True)
class Pools:
    """`on_report(worker)` hears of every report, `on_gone(worker)` of every one that is not there any more. Everything belongs
    to the event loop's thread."""

    on_report: Callable[[Worker], None] = lambda worker: None
    on_gone: Callable[[Worker], None] = lambda worker: None
    _workers: dict[str, Worker] = field(default_factory=dict)

    def register(self, told: Registration, now: float) -> None:
        """Raises BadRequest for a family, block size or shard count unlike that of the model's other workers."""
        self._check(told)
        before = self._workers.get(told.name)
        if before is not None and before.registration.incarnation != told.incarnation:
            self._remove(before)
        if before is None and len(self._workers) >= WORKERS_MAX:
            raise BadRequest(f"there are {WORKERS_MAX} workers already; no more can register")
        report = Report(name=told.name, incarnation=told.incarnation, role=told.role, free_slots=told.slots)
        if before is not None and before.registration.incarnation == told.incarnation:
            report = before.report
        worker = Worker(told, now, report, before.wanted_role if before else None)
        if before is not None and not before.gone.is_set():
            worker.gone = before.gone  # calls that run go on
        self._workers[told.name] = worker
        if before is None:
            log.info("worker %s (%s, model %s) at %s", told.name, told.role, told.model, told.address)

    def report(self, told: Report, now: float) -> Reported:
        worker = self._workers.get(told.name)
        if worker is None or worker.registration.incarnation != told.incarnation:
            return Reported(known=False)
        worker.heard, worker.report, worker.full = now, told, False
        self.on_report(worker)
        role = worker.wanted_role if worker.wanted_role is not told.role else None
        return Reported(known=True, role=role)

    def leave(self, told: Leave) -> None:
        worker = self._workers.get(told.name)
        if worker is not None and worker.registration.incarnation == told.incarnation:
            self._remove(worker)

    def stood_still(self, seconds: float) -> None:
        """This process did nothing for so long: that nobody was heard meanwhile is nobody's silence."""
        for worker in self._workers.values():
            worker.heard += seconds

    def sweep(self, now: float) -> None:
        """Forgets those that have not been heard of for long."""
        for worker in [worker for worker in self._workers.values() if not worker.alive(now)]:
            log.warning(
                "worker %s has not reported for %.1f s: it is taken to be gone", worker.name, now - worker.heard
            )
            self._remove(worker)

    def failed(self, worker: Worker, now: float) -> None:
        """A call to it broke: others go first for a moment."""
        worker.failed_at, worker.failures = now, worker.failures + 1

    def want_role(self, name: str, role: Role) -> None:
        """The worker is told with its next report. Raises BadRequest for an unknown one, and for one that can't change."""
        worker = self._workers.get(name)
        if worker is None:
            raise BadRequest(f"there is no worker {name}")
        if not worker.registration.may_change_role:
            raise BadRequest(f"worker {name} keeps its role while it runs: start its server anew with the other one")
        worker.wanted_role = role

    # --- questions ---

    def all(self) -> list[Worker]:
        return list(self._workers.values())

    def able(self, model: str, role: Role, now: float) -> list[Worker]:
        """Those who serve the model in that role and answer, in the order of their names; shunned ones if there is nobody else."""
        able = [w for w in self._workers.values() if w.registration.model == model and _takes(w, role, now)]
        able.sort(key=lambda worker: worker.name)
        return [worker for worker in able if not worker.shunned(now)] or able

    def models(self, now: float) -> list[str]:
        """Names of the models that somebody answers for."""
        decoding = {w.registration.model for w in self._workers.values() if _takes(w, Role.DECODE, now)}
        return sorted(decoding)

    def any_of(self, model: str) -> Registration:
        """The registration of one worker of the model: what is equal for all of them. Raises NoSuchModel."""
        known = [worker.registration for worker in self._workers.values() if worker.registration.model == model]
        if not known:
            raise NoSuchModel(model, ", ".join(sorted({w.registration.model for w in self._workers.values()})))
        return next((told for told in known if told.hashing is not None), known[0])

    def positions_max(self, model: str) -> int:
        """What every worker of the model can take. Raises NoSuchModel."""
        self.any_of(model)
        return min(w.registration.positions_max for w in self._workers.values() if w.registration.model == model)

    def block_tokens(self, model: str) -> int:
        """Tokens of a block; 0 for a model that has no worker with a store."""
        known = (w.registration for w in self._workers.values() if w.registration.model == model)
        return next((told.hashing.block_tokens for told in known if told.hashing is not None), 0)

    def public_block_tokens(self, model: str) -> int:
        """As `block_tokens`, for prompts that are public; 0 also where workers salt a prompt from its first token on."""
        kinds = {w.registration.kind for w in self._workers.values() if w.registration.model == model}
        return 0 if WorkerKind.VLLM in kinds else self.block_tokens(model)

    def _check(self, told: Registration) -> None:
        for worker in self._workers.values():
            other = worker.registration
            if other.model != told.model or other.name == told.name:
                continue
            differing = sorted(k for k in {*other.family, *told.family} if other.family.get(k) != told.family.get(k))
            if differing and other.family and told.family:
                field_name = differing[0]
                raise BadRequest(
                    f"worker {told.name} of model {told.model} has {field_name} = {told.family.get(field_name)!r}, worker"
                    f" {other.name} {other.family.get(field_name)!r}: KV of one can't be used by the other"
                )

    def _remove(self, worker: Worker) -> None:
        if self._workers.get(worker.name) is worker:
            del self._workers[worker.name]
            worker.gone.set()
            self.on_gone(worker)


def _takes(worker: Worker, role: Role, now: float) -> bool:
    return worker.role is role and worker.alive(now) and not worker.report.draining
