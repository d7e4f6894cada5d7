"""The dashboard under /-/ui/. What its files show comes from the JSON pages; nothing here knows of blocks."""

from aiohttp import web

from mooncask.client.dashboards.files import PREFIX, DashboardFiles
from mooncask.daemon.http.pages.routes import Access, PageRoute


class Dashboard:
    """Its routes. Serves files and nothing else."""

    def __init__(self) -> None:
        self._files = DashboardFiles("mooncask.daemon.http.pages")

    def routes(self) -> list[PageRoute]:
        """Open: what the files show, they ask for with the token."""
        return [
            PageRoute("/-/(ui)?", self._moved, Access.OPEN),
            PageRoute(PREFIX + "[a-z]*[.]?[a-z]*", self._file, Access.OPEN),
        ]

    async def _moved(self, request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": PREFIX})

    async def _file(self, request: web.Request) -> web.Response:
        name = request.rel_url.path_safe.removeprefix(PREFIX)
        answer = self._files.answer(name, request.headers.get("If-None-Match"))
        if answer is None:
            raise web.HTTPNotFound
        if answer.status == 304:
            return web.Response(status=304, headers=answer.headers)
        return web.Response(body=answer.body, content_type=answer.content_type, charset="utf-8", headers=answer.headers)
