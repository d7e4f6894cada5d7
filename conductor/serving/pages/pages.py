"""The pages themselves: paths under /-/ of the clients' listener, and what they answer. docs/CONDUCTOR-PAGES.md lists them.

Not here: who sees them (`access.py`), and what is in them (`rows.py`, `metrics.py`).
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from mooncask.client.worker_api import Role
from mooncask.conductor.serving.dispatch.dispatcher import LiveDispatcher
from mooncask.conductor.serving.dispatch.policy_table import PolicySettings
from mooncask.conductor.serving.dispatch.pools import Worker
from mooncask.conductor.serving.pages.access import PageAccess
from mooncask.conductor.serving.pages.dashboard import Dashboard
from mooncask.conductor.serving.pages.metrics import ConductorMetrics
from mooncask.conductor.serving.pages.rows import (
    REQUESTS_SHOWN,
    CacheRow,
    HotRow,
    Overview,
    calibration,
    class_rows,
    pool_rows,
    request_page,
)
from mooncask.conductor.serving.planning.planner import PlanPage
from mooncask.errors import BadField, NoSuchRequest, NoSuchWorker

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LIMIT_MAX = 2000
WORKERS_NAMED = 50


class RoleAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /-/v1/workers/NAME/role."""

    role: Role


@dataclass(slots=True)
class Told:
    """What other parts of the Conductor have for the pages; each is asked when somebody looks."""

    version: str
    draining: Callable[[], bool]
    quotas: Callable[[], dict[str, dict[str, tuple[int, int]]]]
    hot: Callable[[], list[HotRow]] = list
    caches: Callable[[], list[CacheRow]] = list
    currency: str = ""
    plan: Callable[[], PlanPage | None] = lambda: None


@dataclass(slots=True)
class Pages:
    """Of one Conductor. Belongs to the event loop's thread."""

    dispatcher: LiveDispatcher
    settings: PolicySettings
    metrics: ConductorMetrics
    access: PageAccess
    told: Told
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Every report and every end is counted from now on."""
        heard = self.dispatcher.pools.on_report

        def reported(worker: Worker) -> None:
            heard(worker)
            self.metrics.reported(worker)

        self.dispatcher.pools.on_report = reported
        self.dispatcher.history.on_end.append(self.metrics.ended)

    def add_to(self, app: web.Application) -> None:
        router = app.router
        router.add_get("/-/metrics", self._shown(self._metrics))
        router.add_get("/-/v1/overview", self._shown(self._overview))
        router.add_get("/-/v1/pools", self._shown(self._pools))
        router.add_get("/-/v1/requests", self._shown(self._requests))
        router.add_get("/-/v1/requests/{request}", self._shown(self._request))
        router.add_get("/-/v1/calibration", self._shown(self._calibration))
        router.add_get("/-/v1/plan", self._shown(self._plan))
        router.add_post("/-/v1/workers/{worker}/role", self._shown(self._role))
        Dashboard().add_to(app)

    def overview(self) -> Overview:
        history, metrics = self.dispatcher.history, self.metrics
        newest = history.newest(LIMIT_MAX)
        return Overview(
            at=time.time(),
            version=self.told.version,
            up_seconds=time.monotonic() - self._started,
            draining=self.told.draining(),
            running=self.dispatcher.running,
            waiting=self.dispatcher.waiting,
            placement=self.settings.placement,
            admission=self.settings.admission,
            classes=class_rows(self.settings),
            outcomes=dict(history.outcomes),
            rejections=_by_reason(metrics.rejections),
            prompt_tokens=metrics.sum_of("prompt_tokens"),
            matched_tokens=metrics.sum_of("matched_tokens"),
            cached_tokens=metrics.sum_of("cached_tokens"),
            output_tokens=metrics.sum_of("output_tokens"),
            retries=metrics.sum_of("retries"),
            ttft=[one.ttft for one in reversed(newest) if one.ttft][-200:],
            pools=pool_rows(self.dispatcher),
            requests=newest[:REQUESTS_SHOWN],
            calibration=calibration(self.dispatcher),
            quotas=self.told.quotas(),
            hot=self.told.hot(),
            caches=self.told.caches(),
            currency=self.told.currency,
            plan=self.told.plan(),
        )

    def _shown(self, handler: Handler) -> Handler:
        async def checked(request: web.Request) -> web.StreamResponse:
            self.access.check(request.remote or "", request.headers)
            return await handler(request)

        return checked

    # --- pages ---

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=self.metrics.text(), headers={"Content-Type": self.metrics.content_type})

    async def _overview(self, request: web.Request) -> web.StreamResponse:
        return _json(self.overview())

    async def _pools(self, request: web.Request) -> web.StreamResponse:
        return _json({"pools": pool_rows(self.dispatcher)})

    async def _requests(self, request: web.Request) -> web.StreamResponse:
        limit = _number(request.query, "limit", REQUESTS_SHOWN)
        return _json({"requests": self.dispatcher.history.newest(limit)})

    async def _request(self, request: web.Request) -> web.StreamResponse:
        asked, history = request.match_info["request"], self.dispatcher.history
        decision = history.get(asked) or history.get(f"{asked}-0")
        if decision is None:
            raise NoSuchRequest(asked)
        return _json(request_page(decision, self.settings))

    async def _calibration(self, request: web.Request) -> web.StreamResponse:
        return _json(calibration(self.dispatcher))

    async def _plan(self, request: web.Request) -> web.StreamResponse:
        return _json(self.told.plan())

    async def _role(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["worker"]
        try:
            asked = msgspec.json.decode(await request.read(), type=RoleAsked)
        except msgspec.DecodeError as exc:
            raise BadField("role", f'{exc}; send {{"role": "prefill"}} or {{"role": "decode"}}') from exc
        known = sorted(worker.name for worker in self.dispatcher.pools.all())
        if name not in known:
            raise NoSuchWorker(name, ", ".join(known[:WORKERS_NAMED]))
        self.dispatcher.pools.want_role(name, asked.role)
        return _json({"worker": name, "wanted_role": asked.role})


def _json(value: Any) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", headers=headers)


def _number(query: Mapping[str, str], name: str, otherwise: int) -> int:
    given = query.get(name)
    if given is None:
        return otherwise
    if not given.isascii() or not given.isdecimal() or not 1 <= int(given) <= LIMIT_MAX:
        raise BadField(name, f"a number from 1 to {LIMIT_MAX}")
    return int(given)


def _by_reason(rejections: Mapping[tuple[str, ...], int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for (*_, reason), count in rejections.items():
        found[reason] = found.get(reason, 0) + count
    return found
