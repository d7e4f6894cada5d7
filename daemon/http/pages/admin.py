"""What stands under /-/ beside S3: metrics, health and status. No bucket can be called "-"."""

import asyncio

import msgspec
from aiohttp import web

from mooncask.client import wire
from mooncask.daemon.http.callers.caller import caller_of
from mooncask.daemon.http.pages.dashboard import Dashboard
from mooncask.daemon.http.pages.json_pages import Pages
from mooncask.daemon.http.pages.routes import Access, PageRoute
from mooncask.daemon.metrics import Metrics
from mooncask.daemon.session import LocalPlane
from mooncask.daemon.status import daemon_status
from mooncask.tiers.block import TierName


class Admin:
    """The operator's pages."""

    def __init__(self, plane: LocalPlane, metrics: Metrics) -> None:
        self._plane = plane
        self._metrics = metrics

    def routes(self) -> list[PageRoute]:
        return [
            PageRoute("/-/metrics", self._show_metrics, Access.SCRAPED),
            PageRoute("/-/healthz", self._healthz, Access.OPEN),
            PageRoute("/-/readyz", self._readyz, Access.OPEN),
            PageRoute("/-/v1/status", self._status),
            *Pages(self._plane).routes(),
            *Dashboard().routes(),
        ]

    async def _show_metrics(self, request: web.Request) -> web.Response:
        text = await asyncio.to_thread(self._metrics.gather().text)
        return web.Response(body=text, headers={"Content-Type": self._metrics.content_type})

    async def _healthz(self, request: web.Request) -> web.Response:
        """The process answers: that is all it says."""
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        """Requests are served; 503 from the moment the daemon begins to stop."""
        ready = self._plane.service.ready
        return web.Response(status=200 if ready else 503, text="ready\n" if ready else "not ready\n")

    async def _status(self, request: web.Request) -> web.Response:
        status = daemon_status(self._plane, 0, caller_of(request).tenant)
        return web.Response(body=msgspec.json.encode(_status_object(status)), content_type="application/json")


def _status_object(status: wire.Status) -> dict[str, object]:
    """`wire.Status` with names for its fields: the wire's form is arrays."""
    found = msgspec.structs.asdict(status)
    del found["id"]
    found["tiers"] = [_tier_object(tier) for tier in status.tiers]
    found["namespaces"] = [msgspec.structs.asdict(namespace) for namespace in status.namespaces]
    return found


def _tier_object(tier: wire.TierStat) -> dict[str, object]:
    return {**msgspec.structs.asdict(tier), "tier": TierName(tier.tier).name.lower()}
