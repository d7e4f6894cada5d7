"""What a copy is made from: the x-amz-copy-source headers, read and judged. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import unquote_to_bytes

from mooncask.daemon.http.s3.range_request import Span
from mooncask.daemon.objects.attributes import ObjectInfo, names_etag
from mooncask.errors import BadParameter, PreconditionFailed
from mooncask.tiers.block import printable_key

COPY_SOURCE = "x-amz-copy-source"
_IF = f"{COPY_SOURCE}-if-"
_RANGE = re.compile(r"bytes=(\d{1,19})-(\d{1,19})", re.ASCII)


@dataclass(frozen=True, slots=True)
class CopySource:
    bucket: str
    key: bytes


def parse_copy_source(header: str) -> CopySource:
    """ "bucket/key" or "/bucket/key", percent-encoded, versionId=null or none. Raises BadParameter."""
    path, _, version = header.partition("?")
    if version not in ("", "versionId=null"):
        raise BadParameter(COPY_SOURCE, header, "there are no versions")
    raw = path.encode("utf-8", "surrogateescape")  # some clients send UTF-8 as it is
    bucket, _, key = unquote_to_bytes(raw).removeprefix(b"/").partition(b"/")
    if not bucket or not key:
        raise BadParameter(COPY_SOURCE, header, "bucket/key, percent-encoded")
    return CopySource(bucket.decode("utf-8", "replace"), key)


def check_source(headers: Mapping[str, str], source: ObjectInfo) -> None:
    """Raises PreconditionFailed. As S3 has it, an ETag that matches outweighs a date, and one that does not as well."""
    match, none_match = headers.get(_IF + "match"), headers.get(_IF + "none-match")
    # HTTP's dates have no fractions.
    modified = int(source.modified_seconds)
    unmodified_since = _date(headers.get(_IF + "unmodified-since"))
    modified_since = _date(headers.get(_IF + "modified-since"))
    if match is not None and not names_etag(match, source.etag):
        raise _failed(source, f"{_IF}match: {match}", f'its ETag is "{source.etag}"')
    if match is None and unmodified_since is not None and modified > unmodified_since:
        raise _failed(source, f"{_IF}unmodified-since", "it was modified later")
    if none_match is not None and names_etag(none_match, source.etag):
        raise _failed(source, f"{_IF}none-match: {none_match}", f'its ETag is "{source.etag}"')
    if none_match is None and modified_since is not None and modified <= modified_since:
        raise _failed(source, f"{_IF}modified-since", "it was not modified since")


def copied_span(header: str | None, size_bytes: int) -> Span:
    """The part of a source that x-amz-copy-source-range names: both ends, within the object. Raises BadParameter."""
    if header is None:
        return Span(0, size_bytes)
    found = _RANGE.fullmatch(header)
    if found is None or not int(found[1]) <= int(found[2]) < size_bytes:
        raise BadParameter(
            f"{COPY_SOURCE}-range", header, f"bytes=first-last within the {size_bytes} bytes of the source"
        )
    return Span(int(found[1]), int(found[2]) + 1)


def _date(header: str | None) -> float | None:
    """Wall clock seconds; a date that can't be read is no condition, as HTTP has it (RFC 9110, 13.1.3)."""
    if header is None:
        return None
    try:
        return parsedate_to_datetime(header).timestamp()
    except ValueError:
        return None


def _failed(source: ObjectInfo, condition: str, found: str) -> PreconditionFailed:
    return PreconditionFailed(printable_key(source.key), condition[:200], found)
