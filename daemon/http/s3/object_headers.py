"""How what is kept beside an object is spelt in S3's headers, both ways. Pure."""

from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache

from multidict import CIMultiDict, CIMultiDictProxy

from mooncask.daemon.objects.attributes import ObjectAttributes, ObjectInfo, PutCondition
from mooncask.errors import BadRequest

OBJECT_TYPE = "application/octet-stream"
META = "x-amz-meta-"
CHECKSUM = "x-amz-checksum-"
OWN_DIGEST = "x-mooncask-xxh3-128"
"""A block's own checksum, where the object is one block."""
KEPT = ("cache-control", "content-disposition", "content-language", "expires")
"""Standard headers that come back as they were sent, beside content-type and content-encoding."""
OVERRIDES = {f"response-{name}": name for name in ("content-type", "content-encoding", *KEPT)}


def put_attributes(headers: CIMultiDictProxy[str], content_encoding: str) -> ObjectAttributes:
    """What a PUT or an upload says of its object; size, ETag and checksums are not known yet. Raises BadRequest."""
    kept = {name: headers[name] for name in KEPT if name in headers}
    if content_encoding:
        kept["content-encoding"] = content_encoding
    metadata: dict[str, str] = {}
    for name, value in headers.items():
        low = name.lower()
        if low.startswith(META):
            short = low.removeprefix(META)
            metadata[short] = f"{metadata[short]},{value}" if short in metadata else value
    for name, value in {**kept, **metadata}.items():
        _check_text(name, value)
    content_type = headers.get("content-type", "")
    _check_text("content-type", content_type)
    return ObjectAttributes(content_type=content_type, headers=kept, metadata=metadata)


def put_condition(headers: Mapping[str, str]) -> PutCondition:
    return PutCondition(headers.get("If-Match", "").strip(), headers.get("If-None-Match", "").strip())


def object_headers(info: ObjectInfo, query: Mapping[str, str], *, with_checksums: bool) -> CIMultiDict[str]:
    """What GET and HEAD say of an object; `query` may override some (response-content-type and so on).

    The dashboard has the same origin: what somebody stored must not run in a browser as a page of it.
    """
    attributes = info.attributes
    named = {
        "ETag": f'"{info.etag}"',
        "Last-Modified": http_date(int(info.modified_seconds)),
        "Accept-Ranges": "bytes",
        "Content-Type": (attributes.content_type if attributes is not None else "") or OBJECT_TYPE,
        "Content-Security-Policy": "sandbox",
        "X-Content-Type-Options": "nosniff",
    }
    if info.block.checksum and not info.data:
        named[OWN_DIGEST] = info.block.checksum.hex()
    found = CIMultiDict(named)
    if attributes is not None:
        if attributes.headers:
            found.update(attributes.headers)
        if attributes.metadata:
            found.update({META + name: value for name, value in attributes.metadata.items()})
        if with_checksums:
            found.update(checksum_headers(attributes))
    for parameter, name in OVERRIDES.items() if query else ():
        if parameter in query:
            _check_text(parameter, query[parameter])
            found[name] = query[parameter]
    return found


@lru_cache(1024)
def http_date(seconds: int) -> str:
    """As HTTP writes a time: many objects have few of them, and each takes longer to write than to look up."""
    return formatdate(seconds, usegmt=True)


def checksum_headers(attributes: ObjectAttributes) -> dict[str, str]:
    found = {CHECKSUM + name: value for name, value in attributes.checksums.items()}
    if found and attributes.checksum_type:
        found[f"{CHECKSUM}type"] = attributes.checksum_type
    return found


def own_digest(headers: Mapping[str, str]) -> bytes:
    """The xxh3_128 that a client says its block has; empty when it says none. Raises BadRequest."""
    text = headers.get(OWN_DIGEST, "")
    try:
        digest = bytes.fromhex(text)
    except ValueError as error:
        raise BadRequest(f"{OWN_DIGEST} is not hex") from error
    if len(digest) not in (0, 16):
        raise BadRequest(f"{OWN_DIGEST} is 32 hex digits")
    return digest


def _check_text(name: str, value: str) -> None:
    """What could not be sent back as a header is refused when it comes."""
    if any(mark in value for mark in "\r\n\0"):
        raise BadRequest(f"{name[:80]} has a line break in it")
    try:
        (name + value).encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"{name[:80]!r} is not UTF-8") from error
