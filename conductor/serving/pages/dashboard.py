"""The Conductor's dashboard under /-/ui/. What its files show comes from the JSON pages; they tell nothing by themselves, so
everybody may have them."""

from aiohttp import web

from mooncask.client.dashboards.files import PREFIX, DashboardFiles


class Dashboard:
    """Its routes. Serves files and nothing else."""

    def __init__(self) -> None:
        self._files = DashboardFiles("mooncask.conductor.serving.pages")

    def add_to(self, app: web.Application) -> None:
        for path in ("/-", "/-/", "/-/ui"):
            app.router.add_get(path, self._moved)
        app.router.add_get(PREFIX + "{name:[a-z.]*}", self._file)

    async def _moved(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": PREFIX})

    async def _file(self, request: web.Request) -> web.StreamResponse:
        answer = self._files.answer(request.match_info["name"], request.headers.get("If-None-Match"))
        if answer is None:
            raise web.HTTPNotFound
        if answer.status == 304:
            return web.Response(status=304, headers=answer.headers)
        return web.Response(body=answer.body, content_type=answer.content_type, charset="utf-8", headers=answer.headers)
