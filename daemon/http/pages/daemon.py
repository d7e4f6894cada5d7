"""Pages of the whole daemon: how it is doing, what happened lately, its configuration."""

from collections.abc import Awaitable, Callable

from mooncask.client import control
from mooncask.daemon.http.pages.page_request import PageRequest
from mooncask.daemon.insight.config_page import config_page
from mooncask.daemon.insight.events import EVENTS_MAX
from mooncask.daemon.session import LocalPlane

EVENTS_DEFAULT = 100

Page = Callable[[PageRequest], Awaitable[control.Answer]]


class DaemonPages:
    """/-/v1/overview, /-/v1/events, /-/v1/config, /-/v1/peers."""

    def __init__(self, plane: LocalPlane) -> None:
        self._plane = plane
        self._insight = plane.insight

    def pages(self) -> dict[tuple[str, str], Page]:
        return {
            ("GET", "overview"): self._overview,
            ("GET", "events"): self._events,
            ("GET", "config"): self._config,
            ("GET", "peers"): self._peers,
        }

    async def _overview(self, asked: PageRequest) -> control.Answer:
        return await self._insight.overview(asked.caller.tenant)

    async def _events(self, asked: PageRequest) -> control.Answer:
        return self._insight.events(asked.caller.tenant, asked.limit(EVENTS_DEFAULT, EVENTS_MAX))

    async def _config(self, asked: PageRequest) -> control.Answer:
        return config_page(self._plane.service.config, asked.caller.tenant, self._insight.config_file)

    async def _peers(self, asked: PageRequest) -> control.Answer:
        service = self._plane.service
        return (
            await service.cluster.page()
            if service.cluster is not None
            else control.Peers(node=service.config.node.name)
        )
