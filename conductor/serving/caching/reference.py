"""How a chat request names a cache: by headers, or by a first message of role cache. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mooncask.conductor.serving.caching.records import TTL_SECONDS_MAX, Content
from mooncask.errors import BadField

HEADER = "X-Msh-Context-Cache"
HEADER_DRY_RUN = "X-Msh-Context-Cache-DryRun"
HEADER_RESET_TTL = "X-Msh-Context-Cache-Reset-TTL"
_NAMES = frozenset({"cache_id", "tag", "reset_ttl", "dry_run"})


@dataclass(frozen=True, slots=True)
class Reference:
    """`id` or `tag` is empty. `replaces`: a message stands for the cached ones, which are not sent again."""

    id: str
    tag: str
    reset_ttl: int | None
    dry_run: bool
    replaces: bool


def read_reference(
    headers: Mapping[str, str], messages: Sequence[Mapping[str, Any]], tools: object
) -> Reference | None:
    """None: the request names none. Raises BadField."""
    for i, message in enumerate(messages):
        if message["role"] == "cache" and i:
            raise BadField(f"messages[{i}].role", "a cache must be the first message")
    named = headers.get(HEADER, "")
    if messages[0]["role"] != "cache":
        return _of_headers(named, headers) if named else None
    if named:
        raise BadField(HEADER, "the first message names a cache already: leave one of them out")
    if tools:
        raise BadField("tools", "must be left out: the cache has its own")
    return _of_message(str(messages[0]["content"]))


def matched_messages(cache: str, messages: list[dict[str, Any]], tools: object, content: Content) -> None:
    """The request must begin with what is cached. Raises BadField that says what differs."""
    cached = content.messages
    for i, message in enumerate(cached):
        if i >= len(messages):
            raise BadField("messages", f"cache {cache} has {len(cached)} messages, the request {len(messages)}")
        if differing := _differing(message, messages[i]):
            why = f"differs from that message of cache {cache}; send the cached ones first, exactly as they were"
            raise BadField(f"messages[{i}].{differing}", why)
    if (tools or None) != (content.tools or None):
        raise BadField("tools", f"differ from those of cache {cache}; send them exactly as they were")


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The first field, role and content before others, that is not equal in both; empty: none."""
    names = ["role", "content", *sorted({*one, *other} - {"role", "content"})]
    return next((name for name in names if one.get(name) != other.get(name)), "")


def _of_headers(named: str, headers: Mapping[str, str]) -> Reference:
    dry_run = headers.get(HEADER_DRY_RUN, "0")
    if dry_run not in ("0", "1"):
        raise BadField(HEADER_DRY_RUN, "0 or 1")
    return Reference(named[:128], "", _seconds(headers.get(HEADER_RESET_TTL), HEADER_RESET_TTL), dry_run == "1", False)


def _of_message(content: str) -> Reference:
    where, found = "messages[0].content", dict[str, str]()
    for part in content.split(";"):
        name, equals, value = part.partition("=")
        if not equals or not value or name not in _NAMES or name in found:
            form = 'must be as "cache_id=…;reset_ttl=3600;dry_run=1" or "tag=…", each at most once, without a ";" at the end'
            raise BadField(where, form)
        found[name] = value
    if ("cache_id" in found) == ("tag" in found):
        raise BadField(where, "needs cache_id or tag, and not both")
    dry_run = found.get("dry_run", "0")
    if dry_run not in ("0", "1"):
        raise BadField(where, "dry_run is 0 or 1")
    seconds = _seconds(found.get("reset_ttl"), where)
    return Reference(found.get("cache_id", "")[:128], found.get("tag", "")[:128], seconds, dry_run == "1", True)


def _seconds(text: str | None, field: str) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= TTL_SECONDS_MAX:
        raise BadField(field, f"the time to live is 1 to {TTL_SECONDS_MAX} seconds")
    return int(text)
