"""What the caching API may be asked, checked with the documented limits. Pure: no clock, no state."""

import re
from typing import Annotated, Any

import msgspec

from mooncask.conductor.serving.caching.records import TTL_SECONDS_MAX
from mooncask.errors import BadField

NAME_CHARACTERS_MAX = 256
DESCRIPTION_CHARACTERS_MAX = 512
METADATA_MAX = 16
METADATA_KEY_CHARACTERS_MAX = 64
METADATA_VALUE_CHARACTERS_MAX = 512
TAGS_MAX = 16
LIMIT_DEFAULT = 20
LIMIT_MAX = 100
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")
_FILTER = re.compile(r"metadata\[(.{1,64})\]", re.DOTALL)

Id = Annotated[str, msgspec.Meta(max_length=128)]


class Create(msgspec.Struct, frozen=True):
    """POST /v1/caching."""

    model: str
    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    tools: list[dict[str, Any]] | None = None
    name: str | None = None
    description: str | None = None
    metadata: dict[str, str] | None = None
    ttl: int | None = None
    expired_at: float | None = None
    tags: list[str] | None = None


class Update(msgspec.Struct, frozen=True):
    """PUT /v1/caching/{id}."""

    metadata: dict[str, str] | None = None
    ttl: int | None = None
    expired_at: float | None = None


class BindTag(msgspec.Struct, frozen=True):
    """POST /v1/caching/refs/tags."""

    tag: str
    cache_id: Id


class Listing(msgspec.Struct, frozen=True):
    """The query of GET /v1/caching: newest first unless `ascending`; `after` and `before` are ids."""

    limit: int = LIMIT_DEFAULT
    ascending: bool = False
    after: str = ""
    before: str = ""
    metadata: dict[str, str] = {}


def checked_create(asked: Create) -> Create:
    """Raises BadField."""
    if len(asked.name or "") > NAME_CHARACTERS_MAX:
        raise BadField("name", f"at most {NAME_CHARACTERS_MAX} characters")
    if len(asked.description or "") > DESCRIPTION_CHARACTERS_MAX:
        raise BadField("description", f"at most {DESCRIPTION_CHARACTERS_MAX} characters")
    for i, message in enumerate(asked.messages):
        if message.get("role") == "cache":
            raise BadField(f"messages[{i}].role", "a cache can't contain another one: give its messages")
        if message.get("partial"):
            raise BadField(f"messages[{i}].partial", "a cached message must be whole")
    if len(asked.tags or ()) > TAGS_MAX:
        raise BadField("tags", f"at most {TAGS_MAX}")
    for tag in asked.tags or ():
        check_tag(tag, "tags")
    check_metadata(asked.metadata)
    return asked


def check_metadata(metadata: dict[str, str] | None) -> None:
    """Raises BadField."""
    if len(metadata or ()) > METADATA_MAX:
        raise BadField("metadata", f"at most {METADATA_MAX} pairs")
    for key, value in (metadata or {}).items():
        if not 0 < len(key) <= METADATA_KEY_CHARACTERS_MAX:
            raise BadField("metadata", f"a key has 1 to {METADATA_KEY_CHARACTERS_MAX} characters")
        if len(value) > METADATA_VALUE_CHARACTERS_MAX:
            raise BadField(f"metadata.{key}", f"at most {METADATA_VALUE_CHARACTERS_MAX} characters")


def check_tag(tag: str, field: str) -> None:
    """Raises BadField."""
    if not _TAG.fullmatch(tag):
        raise BadField(field, "1 to 128 characters: a letter first, then letters, digits, _, - and .")


def expiry(ttl: int | None, expired_at: float | None, now: float) -> float | None:
    """When a cache ends by what was asked; None where nothing was. Raises BadField."""
    if ttl is not None and expired_at is not None:
        raise BadField("ttl", "give ttl or expired_at, not both")
    if ttl is not None:
        if not 1 <= ttl <= TTL_SECONDS_MAX:
            raise BadField("ttl", f"1 to {TTL_SECONDS_MAX} seconds; refresh it for longer")
        return now + ttl
    if expired_at is not None and not now < expired_at <= now + TTL_SECONDS_MAX:
        raise BadField("expired_at", f"seconds since 1970, in the future, at most {TTL_SECONDS_MAX} s from now")
    return expired_at


def read_listing(query: list[tuple[str, str]]) -> Listing:
    """Raises BadField."""
    found: dict[str, str] = {}
    metadata: dict[str, str] = {}
    for name, value in query:
        if wanted := _FILTER.fullmatch(name):
            metadata[wanted[1]] = value
        elif name in ("limit", "order", "after", "before"):
            found[name] = value
    limit = found.get("limit", str(LIMIT_DEFAULT))
    if not limit.isascii() or not limit.isdecimal() or not 1 <= int(limit) <= LIMIT_MAX:
        raise BadField("limit", f"1 to {LIMIT_MAX}")
    order = found.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadField("order", "asc or desc")
    return Listing(int(limit), order == "asc", found.get("after", ""), found.get("before", ""), metadata)
