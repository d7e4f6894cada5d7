"""The few files of a dashboard as they are served: those of one package, and behind them the ones that all dashboards share.

They ask nobody else for anything, and the answers' policy forbids it. Not here: paths, and who may ask.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

PREFIX = "/-/ui/"
SHARED = "mooncask.client.dashboards"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """To one GET: 304 without a body for who has this file."""

    status: int
    body: bytes
    content_type: str
    headers: Mapping[str, str]


class DashboardFiles:
    """Those in the folder `ui` of a package. Reads a file when it is asked for first and keeps it: 30 KB in all."""

    def __init__(self, package: str) -> None:
        self._folders = [resources.files(one) / "ui" for one in (package, SHARED)]
        self._bodies: dict[str, bytes] = {}

    def answer(self, name: str, known_tag: str | None) -> Answer | None:
        """`name`: what is behind PREFIX, empty for the page itself; `known_tag`: its If-None-Match. None: there is no such file."""
        name = name or "index.html"
        body, content_type = self._body(name), _TYPES.get(name.rpartition(".")[2], "")
        if body is None or not content_type:
            return None
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        status = 304 if known_tag == tag else 200
        return Answer(status, body if status == 200 else b"", content_type, {**_HEADERS, "ETag": tag})

    def _body(self, name: str) -> bytes | None:
        if name not in self._bodies:
            path = next((folder / name for folder in self._folders if (folder / name).is_file()), None)
            if path is None or "/" in name:
                return None
            self._bodies[name] = path.read_bytes()
        return self._bodies[name]
