"""The query API for other routers, in the shape of Mooncake's indexer: POST /register, /unregister, /query, /query_by_hash.

On a listener of its own; with a token whoever sends it as a bearer token is heard. GET /status counts what is followed.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import web

from mooncask.client.bearer import bears
from mooncask.conductor.serving.indexer.hashes import sequence_hashes
from mooncask.conductor.serving.indexer.index import Index, Instance, Standing
from mooncask.errors import AccessDenied, BadField, MooncaskError

BODY_BYTES_MAX = 16 << 20
MEDIA = ("GPU", "CPU", "DISK")
"""Always told, others where there are such."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Optional = Annotated[str, msgspec.Meta(max_length=256)] | None
BlockTokens = Annotated[int, msgspec.Meta(ge=1, le=65536)]
Rank = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Endpoint = Annotated[str, msgspec.Meta(pattern=r"^(tcp://[^/\s*]+:[0-9]{1,5}|ipc:///[^\0]{1,100})$")]


class RegisterAsked(msgspec.Struct, frozen=True, kw_only=True):
    endpoint: Endpoint
    replay_endpoint: Endpoint | None = None
    type: str = "vLLM"
    modelname: Name
    lora_name: Optional = None
    tenant_id: Optional = None
    instance_id: Name
    block_size: BlockTokens
    dp_rank: Rank = 0
    additionalsalt: Optional = None


class UnregisterAsked(msgspec.Struct, frozen=True, kw_only=True):
    instance_id: Name
    tenant_id: Optional = None
    dp_rank: Rank | None = None


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """What both questions say of the prompt beside its tokens."""

    model: Name
    lora_name: Optional = None
    lora_id: int | None = None
    tenant_id: Optional = None
    instance_id: Optional = None
    block_size: BlockTokens
    cache_salt: Optional = None


class TokensAsked(Scope, frozen=True, kw_only=True):
    token_ids: list[int]


class HashesAsked(Scope, frozen=True, kw_only=True):
    seq_hashes: list[int] | None = None
    block_hash: list[int] | None = None
    """The name that earlier drafts of the API gave them."""


Asked = TypeVar("Asked", bound=msgspec.Struct)
DEFAULT_TENANT = "default"


class IndexDoor:
    """Handlers over an Index."""

    def __init__(self, index: Index, token: str = "") -> None:
        self._index, self._token = index, token

    def application(self) -> web.Application:
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._answered])
        app.router.add_post("/register", self._register)
        app.router.add_post("/unregister", self._unregister)
        app.router.add_post("/query", self._query)
        app.router.add_post("/query_by_hash", self._query_by_hash)
        app.router.add_get("/status", self._status)
        return app

    @web.middleware
    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._check(request)
            return await handler(request)
        except MooncaskError as exc:
            status = 401 if isinstance(exc, AccessDenied) else exc.http_status
            return web.json_response({"error": exc.message}, status=status)

    def _check(self, request: web.Request) -> None:
        if self._token and not bears(request.headers.get("Authorization", ""), self._token):
            raise AccessDenied('this index needs its token: send it as "Authorization: Bearer TOKEN"')
        if not self._token and "Origin" in request.headers:
            raise AccessDenied("a page in a browser may not ask this index")

    async def _register(self, request: web.Request) -> web.StreamResponse:
        asked = await _body(request, RegisterAsked)
        instance = Instance(
            tenant=asked.tenant_id or DEFAULT_TENANT,
            name=asked.instance_id,
            model=asked.modelname,
            block_tokens=asked.block_size,
            salt=asked.additionalsalt or "",
            lora=asked.lora_name or "",
        )
        self._index.register(instance, asked.dp_rank, asked.endpoint, asked.replay_endpoint or "")
        return web.json_response({"status": "registered successfully", "instance_id": asked.instance_id})

    async def _unregister(self, request: web.Request) -> web.StreamResponse:
        asked = await _body(request, UnregisterAsked)
        gone = self._index.unregister(asked.tenant_id or DEFAULT_TENANT, asked.instance_id, asked.dp_rank)
        return web.json_response({"status": "unregistered successfully", "removed_instances": gone})

    async def _query(self, request: web.Request) -> web.StreamResponse:
        asked = await _body(request, TokensAsked)
        return self._found(asked, sequence_hashes(asked.token_ids, asked.block_size, self._index.seed))

    async def _query_by_hash(self, request: web.Request) -> web.StreamResponse:
        asked = await _body(request, HashesAsked)
        hashes = asked.seq_hashes if asked.seq_hashes is not None else asked.block_hash
        if hashes is None:
            raise BadField("seq_hashes", "the rolling hashes of the prompt's full blocks")
        return self._found(asked, hashes)

    async def _status(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({**self._index.counts(), "seed": self._index.seed})

    def _found(self, asked: Scope, sequences: Sequence[int]) -> web.Response:
        tenant = asked.tenant_id or DEFAULT_TENANT
        lora = asked.lora_name or ("" if asked.lora_id is None else str(asked.lora_id))
        found = self._index.query(
            tenant, asked.model, lora, asked.cache_salt or "", asked.block_size, sequences, asked.instance_id or ""
        )
        told = {name: _told(standing, asked.block_size) for name, standing in found.items()}
        return web.json_response({tenant: told})


def _told(standing: Standing, block_tokens: int) -> dict[str, Any]:
    """In tokens."""
    media = {**dict.fromkeys(MEDIA, 0), **standing.matched.media}
    return {
        "longest_matched": standing.matched.blocks * block_tokens,
        **{medium: blocks * block_tokens for medium, blocks in media.items()},
        "DP": {str(rank): blocks * block_tokens for rank, blocks in sorted(standing.ranks.items())},
    }


async def _body(request: web.Request, kind: type[Asked]) -> Asked:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except msgspec.ValidationError as exc:
        text, _, where = str(exc).partition(" - at ")
        raise BadField(where.strip("`").removeprefix("$.") or "the body", text) from exc
    except msgspec.DecodeError as exc:
        raise BadField("the body", f"is no JSON: {exc}") from exc
