"""The dashboard under /-/ui/: a few files that ship with the package, served as they are. What they show comes from the JSON
pages; nothing here knows of blocks. The files ask nobody else for anything, and the answers' policy forbids it."""

import hashlib
from importlib import resources

from aiohttp import web

from mooncask.daemon.http.pages.routes import Access, PageRoute

PREFIX = "/-/ui/"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Dashboard:
    """Reads a file when it is asked for first and keeps it: 30 KB, and nothing where nobody opens the dashboard."""

    def __init__(self) -> None:
        self._folder = resources.files("mooncask.daemon.http.pages") / "ui"
        self._bodies: dict[str, bytes] = {}

    def routes(self) -> list[PageRoute]:
        """Open: what the files show, they ask for with the token."""
        return [
            PageRoute("/-/(ui)?", self._moved, Access.OPEN),
            PageRoute(PREFIX + "[a-z]*[.]?[a-z]*", self._file, Access.OPEN),
        ]

    async def _moved(self, request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": PREFIX})

    async def _file(self, request: web.Request) -> web.Response:
        name = request.rel_url.path_safe.removeprefix(PREFIX) or "index.html"
        body = self._body(name)
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        headers = {**_HEADERS, "ETag": tag}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=_TYPES[name.rpartition(".")[2]], charset="utf-8", headers=headers)

    def _body(self, name: str) -> bytes:
        if name not in self._bodies:
            path = self._folder / name
            if name.rpartition(".")[2] not in _TYPES or not path.is_file():
                raise web.HTTPNotFound
            self._bodies[name] = path.read_bytes()
        return self._bodies[name]
