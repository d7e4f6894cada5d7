"""The Conductor's dashboard under /-/ui/: a few files that ship with the package, served as they are. What they show comes from
the JSON pages; they ask nobody else for anything, and the answers' policy forbids it."""

import hashlib
from importlib import resources

from aiohttp import web

PREFIX = "/-/ui/"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Dashboard:
    """Reads its files once, when it is made: 20 KB. They tell nothing, so everybody may have them."""

    def __init__(self) -> None:
        folder = resources.files("mooncask.conductor.serving.pages") / "ui"
        kept = [path for path in folder.iterdir() if path.name.rpartition(".")[2] in _TYPES]
        self._bodies = {path.name: path.read_bytes() for path in kept}

    def add_to(self, app: web.Application) -> None:
        for path in ("/-", "/-/", "/-/ui"):
            app.router.add_get(path, self._moved)
        app.router.add_get(PREFIX + "{name:[a-z.]*}", self._file)

    async def _moved(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": PREFIX})

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"] or "index.html"
        body = self._bodies.get(name)
        if body is None:
            raise web.HTTPNotFound
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        headers = {**_HEADERS, "ETag": tag}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=_TYPES[name.rpartition(".")[2]], charset="utf-8", headers=headers)
