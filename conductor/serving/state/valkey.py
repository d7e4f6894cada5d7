"""State in Valkey or Redis, for several Conductors at once. The server must write an append-only file, and the database must
not be the one in which daemons keep their directory.

Keys, all under one hash tag so that a Cluster keeps them together: {PREFIX}:t:TABLE is a hash from key to version and value,
{PREFIX}:log:TENANT the ids in order of time, {PREFIX}:entries what they say, {PREFIX}:tenants who has a log.
"""

import asyncio
import struct
from collections.abc import Awaitable, Sequence
from typing import Any

import msgspec

from mooncask.conductor.serving.state.state import Entry, Record
from mooncask.errors import ConfigError, StateUnavailable

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 5.0
DIRECTORY_KEY = b"{mooncask}:nodes"
"""What a directory of daemons begins with."""
FORGET_BATCH = 1000

_PUT = """
local had = redis.call('HGET', KEYS[1], ARGV[1])
local version = 0
if had then version = struct.unpack('>I8', had) end
if version ~= tonumber(ARGV[3]) then return 0 end
local fresh = redis.call('INCR', KEYS[2])
redis.call('HSET', KEYS[1], ARGV[1], struct.pack('>I8', fresh) .. ARGV[2])
return fresh
"""
_DELETE = """
local had = redis.call('HGET', KEYS[1], ARGV[1])
if not had or struct.unpack('>I8', had) ~= tonumber(ARGV[2]) then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
"""
_APPEND = """
if redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) == 1 then
  redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
  redis.call('SADD', KEYS[3], ARGV[4])
end
return redis.call('HGET', KEYS[1], ARGV[1])
"""
_FORGET = """
local ids = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
if #ids == 0 then return 0 end
redis.call('ZREM', KEYS[2], unpack(ids))
redis.call('HDEL', KEYS[1], unpack(ids))
return #ids
"""


class _Line(msgspec.Struct, frozen=True, array_like=True):
    tenant: str
    at: float
    value: bytes


class ValkeyState:
    """`state.State`. `url`: redis(s):// or valkey(s)://host:port/db."""

    def __init__(self, url: str, prefix: str, password: str = "") -> None:
        try:
            from valkey.asyncio import Valkey
            from valkey.exceptions import ValkeyError
        except ImportError as exc:
            raise ConfigError("state.url", _shown(url), 'needs "pip install mooncask[cluster]"') from exc
        self._failures: tuple[type[Exception], ...] = (ValkeyError, OSError, TimeoutError)
        self._client: Any = Valkey.from_url(
            url, password=password or None, socket_connect_timeout=CONNECT_SECONDS, socket_timeout=ANSWER_SECONDS
        )
        self._where, self._tag = _shown(url), "{" + prefix + "}:"

    async def open(self) -> None:
        """Raises ConfigError for a server that forgets, or a directory's database; StateUnavailable."""
        told = await self._asked(self._client.info("persistence"))
        if not told.get("aof_enabled"):
            text = 'keeps no append-only file: what is billed would be lost; "CONFIG SET appendonly yes" there'
            raise ConfigError("state.url", self._where, text)
        if await self._asked(self._client.exists(DIRECTORY_KEY)):
            raise ConfigError("state.url", self._where, "is the daemons' directory; give another database (…/1)")

    async def get(self, table: str, key: str) -> Record | None:
        found = await self._asked(self._client.hget(self._table(table), key))
        return None if found is None else _record(key, found)

    async def put(self, table: str, key: str, value: bytes, version: int) -> int:
        return int(
            await self._asked(
                self._client.eval(_PUT, 2, self._table(table), self._tag + "version", key, value, version)
            )
        )

    async def delete(self, table: str, key: str, version: int) -> bool:
        return bool(await self._asked(self._client.eval(_DELETE, 1, self._table(table), key, version)))

    async def records(self, table: str, prefix: str = "") -> list[Record]:
        found = await self._asked(self._client.hgetall(self._table(table)))
        pairs = [(key.decode(), value) for key, value in found.items()]
        return [_record(key, value) for key, value in sorted(pairs) if key.startswith(prefix)]

    async def append(self, entries: Sequence[Entry]) -> list[Entry]:
        return [await self._append(entry) for entry in entries]

    async def _append(self, entry: Entry) -> Entry:
        line = msgspec.msgpack.encode(_Line(entry.tenant, entry.at, entry.value))
        keys = (self._tag + "entries", self._tag + "log:" + entry.tenant, self._tag + "tenants")
        stands = await self._asked(self._client.eval(_APPEND, 3, *keys, entry.id, line, repr(entry.at), entry.tenant))
        return _entry(entry.id, stands)

    async def entries(self, tenant: str, begin: float, end: float, offset: int, limit: int) -> list[Entry]:
        log = self._tag + "log:" + tenant
        found = self._client.zrangebyscore(log, repr(begin), "(" + repr(end), start=offset, num=limit)
        ids = await self._asked(found)
        lines = await self._asked(self._client.hmget(self._tag + "entries", ids)) if ids else []
        return [_entry(id.decode(), line) for id, line in zip(ids, lines, strict=True) if line is not None]

    async def forget(self, before: float) -> int:
        gone = 0
        for tenant in await self._asked(self._client.smembers(self._tag + "tenants")):
            keys = (self._tag + "entries", self._tag + "log:" + tenant.decode())
            while went := int(await self._asked(self._client.eval(_FORGET, 2, *keys, repr(before), FORGET_BATCH))):
                gone += went
        return gone

    async def close(self) -> None:
        await self._client.aclose()

    def _table(self, table: str) -> str:
        return f"{self._tag}t:{table}"

    async def _asked(self, answer: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        except self._failures as exc:
            raise StateUnavailable(self._where, str(exc) or "no answer in time") from exc


def _record(key: str, found: bytes) -> Record:
    return Record(key, found[8:], struct.unpack(">Q", found[:8])[0])


def _entry(id: str, found: bytes) -> Entry:
    line = msgspec.msgpack.decode(found, type=_Line)
    return Entry(id, line.tenant, line.at, line.value)


def _shown(url: str) -> str:
    """Without a password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
