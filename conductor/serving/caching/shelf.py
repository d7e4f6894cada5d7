"""Caches in the Conductor's state: read, changed one at a time, found. What changes mean is `records.py`."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from mooncask.conductor.serving.caching.records import Blocks, Cache, Content, Tag, of_tenant
from mooncask.conductor.serving.state.state import State
from mooncask.errors import NoSuchCache

CACHES, CONTENTS, BLOCKS, TAGS, CLAIMS = "caches", "contents", "blocks", "tags", "claims"

Kind = TypeVar("Kind", bound=msgspec.Struct)


class Claim(msgspec.Struct, frozen=True):
    """Who builds this content, and until when others leave it to them."""

    holder: str
    until: float


class Shelf:
    """All methods raise StateUnavailable."""

    def __init__(self, state: State) -> None:
        self._state = state

    # --- caches ---

    async def add(self, cache: Cache, content: Content) -> None:
        """The content first: no cache is ever seen without it."""
        await self._state.put(CONTENTS, cache.key, msgspec.msgpack.encode(content), 0)
        await self._state.put(CACHES, cache.key, msgspec.msgpack.encode(cache), 0)

    async def get(self, tenant: str, id: str) -> Cache:
        """Raises NoSuchCache, also for what another tenant has."""
        record = await self._state.get(CACHES, f"{tenant}/{id}") if "/" not in id else None
        if record is None:
            raise NoSuchCache(id[:128])
        return msgspec.msgpack.decode(record.value, type=Cache)

    async def content(self, cache: Cache) -> Content:
        """Raises NoSuchCache: it has just been deleted."""
        record = await self._state.get(CONTENTS, cache.key)
        if record is None:
            raise NoSuchCache(cache.id)
        return msgspec.msgpack.decode(record.value, type=Content)

    async def all(self, tenant: str = "") -> list[Cache]:
        """Of one tenant, or of all."""
        records = await self._state.records(CACHES, of_tenant(tenant) if tenant else "")
        return [msgspec.msgpack.decode(record.value, type=Cache) for record in records]

    async def change(self, key: str, change: Callable[[Cache], Cache | None]) -> Cache | None:
        """Applies `change` to the cache as it is, again if somebody else was faster; None from it leaves all as it is.

        Returns what stands there now; None when there is no such cache (any more).
        """
        while True:
            record = await self._state.get(CACHES, key)
            if record is None:
                return None
            before = msgspec.msgpack.decode(record.value, type=Cache)
            after = change(before)
            if after is None or after == before:
                return before
            if await self._state.put(CACHES, key, msgspec.msgpack.encode(after), record.version):
                return after

    async def remove(self, cache: Cache) -> bool:
        """Whether this call removed it: of several at once one does. Its tags go with it."""
        removed = await self._delete(CACHES, cache.key)
        await self._delete(CONTENTS, cache.key)
        await self._delete(BLOCKS, cache.key)
        for tag in await self.tags(cache.tenant):
            if tag.cache_id == cache.id:
                await self._delete(TAGS, of_tenant(cache.tenant) + tag.tag)
        return removed

    # --- blocks ---

    async def put_blocks(self, cache: Cache, blocks: Blocks) -> None:
        await self._set(BLOCKS, cache.key, blocks)

    async def blocks(self, cache: Cache) -> Blocks | None:
        record = await self._state.get(BLOCKS, cache.key)
        return None if record is None else msgspec.msgpack.decode(record.value, type=Blocks)

    # --- tags ---

    async def bind(self, tenant: str, tag: Tag) -> None:
        await self._set(TAGS, of_tenant(tenant) + tag.tag, tag)

    async def tags(self, tenant: str) -> list[Tag]:
        records = await self._state.records(TAGS, of_tenant(tenant))
        return [msgspec.msgpack.decode(record.value, type=Tag) for record in records]

    async def tag(self, tenant: str, name: str) -> Tag | None:
        record = await self._state.get(TAGS, of_tenant(tenant) + name)
        return None if record is None else msgspec.msgpack.decode(record.value, type=Tag)

    async def unbind(self, tenant: str, name: str) -> None:
        await self._delete(TAGS, of_tenant(tenant) + name)

    # --- claims ---

    async def claim(self, name: str, holder: str, now: float, seconds: float) -> bool:
        """Whether `holder` has it now, for `seconds`; renewed by who has it, taken when it has run out."""
        record = await self._state.get(CLAIMS, name)
        value = msgspec.msgpack.encode(Claim(holder, now + seconds))
        if record is None:
            return bool(await self._state.put(CLAIMS, name, value, 0))
        claim = msgspec.msgpack.decode(record.value, type=Claim)
        if claim.holder != holder and claim.until > now:
            return False
        return bool(await self._state.put(CLAIMS, name, value, record.version))

    async def unclaim(self, name: str, holder: str) -> None:
        record = await self._state.get(CLAIMS, name)
        if record is not None and msgspec.msgpack.decode(record.value, type=Claim).holder == holder:
            await self._state.delete(CLAIMS, name, record.version)

    # --- any record ---

    async def _set(self, table: str, key: str, value: msgspec.Struct) -> None:
        """The last one who sets it wins."""
        data = msgspec.msgpack.encode(value)
        while True:
            record = await self._state.get(table, key)
            if await self._state.put(table, key, data, record.version if record is not None else 0):
                return

    async def _delete(self, table: str, key: str) -> bool:
        while (record := await self._state.get(table, key)) is not None:
            if await self._state.delete(table, key, record.version):
                return True
        return False
