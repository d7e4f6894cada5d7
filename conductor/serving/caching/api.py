"""The paths under /v1/caching: JSON in, JSON out. Errors are told by the door's middleware."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from mooncask.conductor.serving.caching.records import Cache, Content, Tag
from mooncask.conductor.serving.caching.requests import BindTag, Create, Update, check_tag, read_listing
from mooncask.conductor.serving.caching.serving import ContextCaching
from mooncask.conductor.serving.door.gate import Identity
from mooncask.conductor.serving.door.requests import read_body
from mooncask.errors import NoSuchCache

Answer = Callable[[Identity, web.Request], Awaitable[Any]]


def add_routes(caching: ContextCaching, app: web.Application) -> None:
    """Tags first: their path would also fit a cache's."""
    api = _Api(caching)
    tags = "/v1/caching/refs/tags"
    for method, path, answer in (
        ("POST", tags, api.bind),
        ("GET", tags, api.tags),
        ("GET", tags + "/{tag}", api.tag),
        ("DELETE", tags + "/{tag}", api.unbind),
        ("GET", tags + "/{tag}/content", api.tagged),
        ("POST", "/v1/caching", api.create),
        ("GET", "/v1/caching", api.find),
        ("GET", "/v1/caching/{id}", api.get),
        ("PUT", "/v1/caching/{id}", api.update),
        ("DELETE", "/v1/caching/{id}", api.delete),
    ):
        app.router.add_route(method, path, api.handler(answer))


class _Api:
    def __init__(self, caching: ContextCaching) -> None:
        self._caching = caching

    def handler(self, answer: Answer) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            identity = self._caching.gate.identify(request.headers)
            return web.json_response(await answer(identity, request))

        return handle

    async def create(self, identity: Identity, request: web.Request) -> Any:
        asked = read_body(await request.read(), Create)
        return view(*await self._caching.create(identity, asked))

    async def find(self, identity: Identity, request: web.Request) -> Any:
        page, more = await self._caching.find(identity, read_listing(list(request.query.items())))
        return {"object": "list", "data": [view(*found) for found in page], "has_more": more}

    async def get(self, identity: Identity, request: web.Request) -> Any:
        return view(*await self._caching.get(identity, request.match_info["id"]))

    async def update(self, identity: Identity, request: web.Request) -> Any:
        asked = read_body(await request.read(), Update)
        return view(*await self._caching.update(identity, request.match_info["id"], asked))

    async def delete(self, identity: Identity, request: web.Request) -> Any:
        id = request.match_info["id"]
        await self._caching.delete(identity, id)
        return {"deleted": True, "id": id, "object": "context_cache_object.deleted"}

    async def bind(self, identity: Identity, request: web.Request) -> Any:
        asked = read_body(await request.read(), BindTag)
        check_tag(asked.tag, "tag")
        cache = await self._caching.shelf.get(identity.tenant, asked.cache_id)
        tag = Tag(asked.tag, cache.id, identity.tenant, time.time())
        await self._caching.shelf.bind(identity.tenant, tag)
        return view_tag(tag)

    async def tags(self, identity: Identity, request: web.Request) -> Any:
        found = await self._caching.shelf.tags(identity.tenant)
        return {"object": "list", "data": [view_tag(tag) for tag in found]}

    async def tag(self, identity: Identity, request: web.Request) -> Any:
        return view_tag(await self._tag(identity, request))

    async def unbind(self, identity: Identity, request: web.Request) -> Any:
        name = request.match_info["tag"]
        await self._caching.shelf.unbind(identity.tenant, name)
        return {"deleted": True, "tag": name, "object": "cache_object.tag.deleted"}

    async def tagged(self, identity: Identity, request: web.Request) -> Any:
        tag = await self._tag(identity, request)
        return view(*await self._caching.get(identity, tag.cache_id))

    async def _tag(self, identity: Identity, request: web.Request) -> Tag:
        name = request.match_info["tag"]
        tag = await self._caching.shelf.tag(identity.tenant, name)
        if tag is None:
            raise NoSuchCache(f"with tag {name[:128]}")
        return tag


def view(cache: Cache, content: Content) -> dict[str, Any]:
    """A cache as clients see it."""
    return {
        "id": cache.id,
        "status": str(cache.status),
        "object": "context-cache",
        "created_at": int(cache.created_at),
        "expired_at": int(cache.expired_at),
        "tokens": cache.tokens,
        "error": None if cache.error is None else {"type": cache.error.type, "message": cache.error.message},
        "model": cache.model,
        "messages": content.messages,
        "tools": content.tools,
        "name": cache.name,
        "description": cache.description,
        "metadata": cache.metadata,
    }


def view_tag(tag: Tag) -> dict[str, Any]:
    return {
        "tag": tag.tag,
        "cache_id": tag.cache_id,
        "object": "cache_object.tag",
        "owned_by": tag.owned_by,
        "created_at": int(tag.created_at),
    }
