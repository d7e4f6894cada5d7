"""Pages of the whole daemon: its configuration."""

from collections.abc import Awaitable, Callable

from mooncask.client import control
from mooncask.daemon.http.page_request import PageRequest
from mooncask.daemon.insight.config_page import config_page
from mooncask.daemon.session import LocalPlane

Page = Callable[[PageRequest], Awaitable[control.Answer]]


class DaemonPages:
    """/-/v1/config."""

    def __init__(self, plane: LocalPlane) -> None:
        self._plane = plane
        self._insight = plane.insight

    def pages(self) -> dict[tuple[str, str], Page]:
        return {("GET", "config"): self._config}

    async def _config(self, asked: PageRequest) -> control.Answer:
        return config_page(self._plane.service.config, asked.caller.tenant, self._insight.config_file)
