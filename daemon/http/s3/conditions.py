"""Conditional GET and HEAD (RFC 9110, 13.2.2) and If-Range (13.1.5). Pure."""

from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from mooncask.daemon.objects.attributes import ObjectInfo, names_etag
from mooncask.errors import PreconditionFailed
from mooncask.tiers.block import printable_key

_CONDITIONS = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")


def not_modified(headers: Mapping[str, str], info: ObjectInfo) -> bool:
    """Whether 304 is the answer. Raises PreconditionFailed. A date counts only where no ETag is asked for."""
    for name in _CONDITIONS:
        if name in headers:
            return _not_modified(headers, info)
    return False


def _not_modified(headers: Mapping[str, str], info: ObjectInfo) -> bool:
    modified, key = int(info.modified_seconds), printable_key(info.key)
    found = f'its ETag is "{info.etag}"'
    if "If-Match" in headers:
        if not names_etag(headers["If-Match"], info.etag):
            raise PreconditionFailed(key, f"If-Match: {headers['If-Match'][:200]}", found)
    elif (since := _seconds(headers.get("If-Unmodified-Since"))) is not None and modified > since:
        raise PreconditionFailed(key, f"If-Unmodified-Since: {headers['If-Unmodified-Since']}", "it was modified later")
    if "If-None-Match" in headers:
        return names_etag(headers["If-None-Match"], info.etag)
    since = _seconds(headers.get("If-Modified-Since"))
    return since is not None and modified <= since


def range_counts(headers: Mapping[str, str], info: ObjectInfo) -> bool:
    """Whether If-Range, where there is one, names this very version: else a Range is not looked at."""
    text = headers.get("If-Range")
    if text is None:
        return True
    if text.startswith('"'):
        return text.strip() == f'"{info.etag}"'
    return _seconds(text) == int(info.modified_seconds)


def _seconds(date: str | None) -> int | None:
    """None for what is no date: the condition is ignored then."""
    if not date:
        return None
    try:
        return int(parsedate_to_datetime(date).timestamp())
    except (TypeError, ValueError, OverflowError):
        return None
