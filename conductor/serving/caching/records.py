"""What is known of one cache, and how it changes: pure; who reads and writes records is `shelf.py`.

    create -> pending -> ready -> inactive (its time is over) -> forgotten
                 ^  \\-> error    |
                 \\---- lost, or given another time; from inactive: revived

Times are wall-clock seconds.
"""

import math
import secrets
from enum import StrEnum
from typing import Any
from urllib.parse import quote

import msgspec

TTL_SECONDS_MAX = 3600
INACTIVE_SECONDS = 86_400.0
"""So long a cache can be revived after its time; then it is forgotten."""
RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 30.0, 30.0)
"""Between attempts to build; after the last one the cache is in error."""


class Status(StrEnum):
    PENDING = "pending"
    READY = "ready"
    ERROR = "error"
    INACTIVE = "inactive"


class Trouble(msgspec.Struct, frozen=True):
    """Why a cache is in error, as its owner is told."""

    type: str
    message: str


class Place(msgspec.Struct, frozen=True):
    """The node that holds the blocks, and what its daemon is asked for."""

    node: str
    pages: str
    namespace: str


class Blocks(msgspec.Struct, frozen=True):
    """One record of the table "blocks", under the cache's key: the keys that are held, in hex, once it was built."""

    keys: tuple[str, ...]


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the table "caches", under TENANT/ID. Without its messages: those are a `Content`."""

    id: str
    tenant: str
    model: str
    created_at: float
    expired_at: float
    tokens: int
    digest: str
    """Of what is cached: equal for two caches that share their blocks."""
    status: Status = Status.PENDING
    name: str = ""
    description: str = ""
    metadata: dict[str, str] = {}
    error: Trouble | None = None
    cache_salt: str = ""
    public_tokens: int = 0
    place: Place | None = None
    """Where the blocks are held; also while pending, where they were last."""
    paid_tokens: int | None = None
    """Tokens of creation that are billed, once it was ready: none where another cache has paid for the same content."""
    ready_since: float = 0.0
    stored_seconds: float = 0.0
    """For how long it was ready before `ready_since`."""
    billed_minutes: int = 0
    failures: int = 0
    retry_at: float = 0.0

    @property
    def key(self) -> str:
        return of_tenant(self.tenant) + self.id

    @property
    def lives(self) -> bool:
        """Its tokens count for the quota."""
        return self.status in (Status.PENDING, Status.READY)

    def stored(self, now: float) -> float:
        """Seconds for which it was ready, in all."""
        end = min(now, self.expired_at)
        return self.stored_seconds + (max(0.0, end - self.ready_since) if self.status is Status.READY else 0.0)

    def minutes(self, now: float) -> int:
        """Minutes of storage to be billed in all: a minute that has begun counts."""
        return math.ceil(self.stored(now) / 60 - 1e-9)


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the table "contents", under the cache's key: what it stands for. `tokens`: those that are cached."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    tokens: list[int]


class Tag(msgspec.Struct, frozen=True):
    """One record of the table "tags", under TENANT/TAG."""

    tag: str
    cache_id: str
    owned_by: str
    created_at: float


def of_tenant(tenant: str) -> str:
    """What the keys of all that a tenant has begin with; no tenant's is the beginning of another's."""
    return quote(tenant, safe="") + "/"


def new_id() -> str:
    return f"cache-{secrets.token_hex(10)}"


def ready(cache: Cache, place: Place, now: float, paid_tokens: int = 0) -> Cache:
    """What was paid at first stays."""
    paid = paid_tokens if cache.paid_tokens is None else cache.paid_tokens
    return msgspec.structs.replace(
        cache, status=Status.READY, place=place, paid_tokens=paid, ready_since=now, error=None, failures=0, retry_at=0.0
    )


def pending(cache: Cache, now: float) -> Cache:
    """Blocks are gone, or may be: it is built again. What it was stored for so far is kept."""
    return msgspec.structs.replace(
        cache,
        status=Status.PENDING,
        stored_seconds=cache.stored(now),
        ready_since=0.0,
        retry_at=0.0,
        error=None,
        failures=0,
    )


def failed(cache: Cache, message: str, now: float) -> Cache:
    """One attempt to build has failed: it is tried again, a few times."""
    if cache.failures >= len(RETRY_SECONDS):
        return troubled(cache, Trouble("server_error", message), now)
    return msgspec.structs.replace(cache, failures=cache.failures + 1, retry_at=now + RETRY_SECONDS[cache.failures])


def waiting(cache: Cache, now: float) -> Cache:
    """Nobody can build it now: it waits for workers, and that is no failure of its own."""
    return msgspec.structs.replace(cache, retry_at=now + RETRY_SECONDS[1])


def troubled(cache: Cache, trouble: Trouble, now: float) -> Cache:
    return msgspec.structs.replace(
        cache, status=Status.ERROR, error=trouble, stored_seconds=cache.stored(now), ready_since=0.0
    )


def ended(cache: Cache, now: float) -> Cache:
    """Its time is over. It was stored until then, not until somebody noticed."""
    return msgspec.structs.replace(cache, status=Status.INACTIVE, stored_seconds=cache.stored(now), ready_since=0.0)


def until(cache: Cache, expired_at: float, now: float) -> Cache:
    """It ends at another time; one that was over is built anew."""
    if cache.status is Status.READY:
        return msgspec.structs.replace(cache, expired_at=expired_at)
    return msgspec.structs.replace(pending(cache, now), expired_at=expired_at)


def common_tokens(one: list[int], other: list[int], block_tokens: int) -> int:
    """How many tokens both begin with, in whole blocks."""
    most = min(len(one), len(other))
    same = most if one[:most] == other[:most] else next(i for i in range(most) if one[i] != other[i])
    return same // block_tokens * block_tokens if block_tokens else 0
