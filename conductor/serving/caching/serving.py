"""Context caching as tenants see it: create, find, change and delete caches, tag them, and use them in chats.

Not here: HTTP (`api.py`), building and keeping (`building.py`, `keeper.py`).
"""

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from aiohttp import web
from msgspec.structs import replace

from mooncask.conductor.serving.caching.building import let_go
from mooncask.conductor.serving.caching.holding import NodeHolds
from mooncask.conductor.serving.caching.keeper import Keeper
from mooncask.conductor.serving.caching.records import (
    TTL_SECONDS_MAX,
    Cache,
    Content,
    Status,
    Tag,
    common_tokens,
    new_id,
    pending,
    until,
)
from mooncask.conductor.serving.caching.reference import matched_messages, read_reference
from mooncask.conductor.serving.caching.requests import Create, Listing, Update, check_metadata, checked_create, expiry
from mooncask.conductor.serving.caching.shelf import Shelf
from mooncask.conductor.serving.door.caching import CacheUse, Resolved
from mooncask.conductor.serving.door.gate import Gate, Identity
from mooncask.conductor.serving.door.requests import plain_messages
from mooncask.conductor.serving.text.texts import Texts
from mooncask.errors import (
    BadField,
    BadRequest,
    ContextTooLong,
    NoSuchCache,
    NoSuchModel,
    NoWorkers,
    StateUnavailable,
    TokenQuotaExceeded,
)

log = logging.getLogger(__name__)

CONTENTS_MAX = 64
"""Contents kept in memory, the last ones used: they never change."""


class Models(Protocol):
    """What is served, as the dispatcher knows it."""

    def models(self) -> list[str]: ...

    def positions_max(self, model: str) -> int: ...


@dataclass(frozen=True, slots=True)
class CachingLimits:
    cache_tokens: int = 131_072
    tenant_tokens: int = 1_000_000
    """Of all caches of a tenant that are pending or ready."""


@dataclass(slots=True)
class ContextCaching:
    """`door.caching.Caching`. Belongs to the event loop's thread."""

    shelf: Shelf
    keeper: Keeper
    holds: NodeHolds
    gate: Gate
    texts: Texts
    models: Models
    block_tokens: Callable[[str], int]
    limits: CachingLimits
    routes: Callable[["ContextCaching", web.Application], None]
    _contents: OrderedDict[str, Content] = field(default_factory=OrderedDict)

    def add_to(self, app: web.Application) -> None:
        self.routes(self, app)

    # --- caches ---

    async def create(self, identity: Identity, asked: Create) -> tuple[Cache, Content]:
        """Pending; it is built in the background. Raises BadField, NoSuchModel, NoWorkers, ContextTooLong, TokenQuotaExceeded."""
        now = time.time()
        asked = checked_create(asked)
        ends = expiry(asked.ttl, asked.expired_at, now) or now + TTL_SECONDS_MAX
        messages = plain_messages(asked.messages)
        tokens = await self._cached_tokens(asked.model, messages, asked.tools)
        self._check_length(asked.model, tokens)
        public = self.gate.public_tokens(identity, asked.model, tokens)
        cache = Cache(
            id=new_id(),
            tenant=identity.tenant,
            model=asked.model,
            created_at=now,
            expired_at=ends,
            tokens=len(tokens),
            digest=_digest(asked.model, identity.cache_salt, public, tokens),
            name=asked.name or "",
            description=asked.description or "",
            metadata=asked.metadata or {},
            cache_salt=identity.cache_salt,
            public_tokens=public,
        )
        await self._check_quota(cache, more=cache.tokens)
        await self.gate.admit(identity, len(tokens))
        content = Content(messages=messages, tools=asked.tools, tokens=tokens)
        await self.shelf.add(cache, content)
        try:
            await self._check_quota(cache)  # of two at once that fit one by one
        except TokenQuotaExceeded:
            await self.shelf.remove(cache)
            raise
        for tag in asked.tags or ():
            await self.shelf.bind(identity.tenant, Tag(tag, cache.id, identity.tenant, now))
        self.keeper.kick()
        return cache, content

    async def get(self, identity: Identity, id: str) -> tuple[Cache, Content]:
        """Raises NoSuchCache."""
        cache = await self.shelf.get(identity.tenant, id)
        return cache, await self._content(cache)

    async def find(self, identity: Identity, asked: Listing) -> tuple[list[tuple[Cache, Content]], bool]:
        """A page of the tenant's caches, and whether there are more. Raises NoSuchCache for an `after` that is none."""
        page, more = listed(await self.shelf.all(identity.tenant), asked)
        return [(cache, await self._content(cache)) for cache in page], more

    async def update(self, identity: Identity, id: str, asked: Update) -> tuple[Cache, Content]:
        """Another time to live makes it pending, until its blocks were seen to be there. Raises NoSuchCache, BadField."""
        check_metadata(asked.metadata)
        now = time.time()
        ends = expiry(asked.ttl, asked.expired_at, now)
        cache = await self.shelf.get(identity.tenant, id)
        if ends is not None and not cache.lives:
            await self._check_quota(cache, more=cache.tokens)
        changed = await self.shelf.change(cache.key, lambda c: _updated(c, asked.metadata, ends, now))
        if changed is None:
            raise NoSuchCache(id)
        self.keeper.kick()
        return changed, await self._content(changed)

    async def delete(self, identity: Identity, id: str) -> None:
        """Raises NoSuchCache."""
        cache = await self.shelf.get(identity.tenant, id)
        await self.keeper.meter.storage(cache, time.time())
        if not await self.shelf.remove(cache):
            raise NoSuchCache(id)
        self._contents.pop(cache.key, None)
        await let_go(self.holds, cache, cache.place)

    # --- use in a chat ---

    async def resolve(
        self,
        identity: Identity,
        model: str,
        headers: Mapping[str, str],
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
    ) -> Resolved:
        """As `door.caching.Caching.resolve`."""
        named = read_reference(headers, messages, tools)
        if named is None:
            return Resolved(messages, tools)
        id = named.id or await self._tagged(identity, named.tag)
        cache = await self.shelf.get(identity.tenant, id)
        if cache.model != model:
            raise BadField("model", f"is {model}, and cache {id} was made for {cache.model}")
        over = cache.status is Status.INACTIVE or cache.expired_at <= time.time()
        if over and named.reset_ttl is None:
            raise NoSuchCache(id, "its time to live is over; reset_ttl, or PUT with a ttl, revives it")
        content = await self._content(cache)
        if named.replaces:
            messages, tools = [*content.messages, *messages[1:]], content.tools
        else:
            matched_messages(id, messages, tools, content)
        return Resolved(messages, tools, id, named.dry_run, named.reset_ttl)

    async def use(self, identity: Identity, resolved: Resolved, tokens: list[int]) -> CacheUse | None:
        if not resolved.cache:
            return None
        cache = await self.shelf.get(identity.tenant, resolved.cache)
        covered = 0
        if cache.status is Status.READY:
            cached = (await self._content(cache)).tokens
            covered = common_tokens(cached, tokens, self.block_tokens(cache.model))
        return CacheUse(identity, cache.id, covered, resolved.reset_ttl)

    async def used(self, use: CacheUse, cached_tokens: int) -> dict[str, str]:
        try:
            cache = await self._reset(use) if use.reset_ttl else await self.shelf.get(use.identity.tenant, use.cache)
        except (NoSuchCache, TokenQuotaExceeded, StateUnavailable) as exc:  # the answer is as good
            log.info("cache %s was used, and its time was not set: %s", use.cache, exc.message)
            return {"Msh-Context-Cache-Id": use.cache, "Msh-Context-Cache-Token-Saved": "0"}
        return {
            "Msh-Context-Cache-Id": cache.id,
            "Msh-Context-Cache-Token-Saved": str(min(use.tokens, cached_tokens)),
            "Msh-Context-Cache-Token-Exp": str(int(cache.expired_at)),
        }

    async def _reset(self, use: CacheUse) -> Cache:
        """Raises NoSuchCache, TokenQuotaExceeded."""
        now = time.time()
        cache = await self.shelf.get(use.identity.tenant, use.cache)
        if not cache.lives:
            await self._check_quota(cache, more=cache.tokens)
        ends = now + (use.reset_ttl or 0)
        changed = await self.shelf.change(cache.key, lambda c: until(c, ends, now))
        if changed is None:
            raise NoSuchCache(use.cache)
        if changed.status is Status.PENDING:
            self.keeper.kick()
        return changed

    async def _tagged(self, identity: Identity, name: str) -> str:
        tag = await self.shelf.tag(identity.tenant, name)
        if tag is None:
            raise NoSuchCache(f"with tag {name}")
        return tag.cache_id

    # --- what is cached ---

    async def _cached_tokens(
        self, model: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
    ) -> list[int]:
        """What every prompt that begins with these messages begins with, in whole blocks."""
        served = sorted(set(self.models.models()) & set(self.texts.models()))
        if model not in served:
            raise NoSuchModel(model, ", ".join(served))
        block_tokens = self.block_tokens(model)
        if not block_tokens:
            raise NoWorkers(f"no worker of model {model} has a store")
        one = (await self.texts.prompt(model, [*messages, {"role": "user", "content": "0"}], tools)).tokens
        other = await self._other_continuation(model, messages, tools)
        tokens = one[: common_tokens(one, other, block_tokens)]
        if not tokens:
            raise BadField("messages", f"are less than the {block_tokens} tokens of a block: there is nothing to cache")
        return tokens

    async def _other_continuation(
        self, model: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
    ) -> list[int]:
        """By the assistant where the template takes that, since the next message need not be a user's."""
        try:
            return (await self.texts.prompt(model, [*messages, {"role": "assistant", "content": "x"}], tools)).tokens
        except BadRequest:
            return (await self.texts.prompt(model, [*messages, {"role": "user", "content": "x"}], tools)).tokens

    def _check_length(self, model: str, tokens: Sequence[int]) -> None:
        if len(tokens) > self.limits.cache_tokens:
            raise BadField("messages", f"are {len(tokens)} tokens; a cache has at most {self.limits.cache_tokens}")
        if len(tokens) >= self.models.positions_max(model):
            raise ContextTooLong(len(tokens), 0, self.models.positions_max(model))

    async def _check_quota(self, cache: Cache, more: int = 0) -> None:
        """Of the tenant's pending and ready caches. Raises TokenQuotaExceeded."""
        caches = await self.shelf.all(cache.tenant)
        if sum(other.tokens for other in caches if other.lives) + more > self.limits.tenant_tokens:
            raise TokenQuotaExceeded(cache.tenant, "cached tokens", self.limits.tenant_tokens, 0.0)

    async def _content(self, cache: Cache) -> Content:
        content = self._contents.get(cache.key)
        if content is None:
            content = self._contents[cache.key] = await self.shelf.content(cache)
            if len(self._contents) > CONTENTS_MAX:
                self._contents.popitem(last=False)
        self._contents.move_to_end(cache.key)
        return content


def listed(caches: Sequence[Cache], asked: Listing) -> tuple[list[Cache], bool]:
    """A page in the order of creation, and whether more follows. Raises NoSuchCache for a border that is not there."""
    ordered = sorted(caches, key=lambda cache: (cache.created_at, cache.id), reverse=not asked.ascending)
    places = {cache.id: i for i, cache in enumerate(ordered)}
    for border in (asked.after, asked.before):
        if border and border not in places:
            raise NoSuchCache(border[:128])
    begin = places[asked.after] + 1 if asked.after else 0
    end = places[asked.before] if asked.before else len(ordered)
    wanted = [
        cache for cache in ordered[begin:end] if all(cache.metadata.get(k) == v for k, v in asked.metadata.items())
    ]
    if asked.before and not asked.after:  # the page that ends there
        return wanted[-asked.limit :], len(wanted) > asked.limit
    return wanted[: asked.limit], len(wanted) > asked.limit


def _updated(cache: Cache, metadata: dict[str, str] | None, ends: float | None, now: float) -> Cache:
    if metadata is not None:
        cache = replace(cache, metadata=metadata)
    return cache if ends is None else replace(pending(cache, now), expired_at=ends)


def _digest(model: str, salt: str, public_tokens: int, tokens: Sequence[int]) -> str:
    head = f"{model}\0{salt}\0{public_tokens}\0".encode()
    return hashlib.sha256(head + np.asarray(tokens, np.uint32).tobytes()).hexdigest()
