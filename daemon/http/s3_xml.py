"""S3's XML answers. Pure: data in, bytes out."""

import re
import time
from collections.abc import Iterable
from urllib.parse import quote
from xml.sax.saxutils import escape

from mooncask.daemon.http.listing import ListRequest, Page, token_of
from mooncask.daemon.http.target import key_text
from mooncask.errors import MooncaskError
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.requests import BlockInfo

_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
_SPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")


def error_document(code: str, message: str, resource: str, request_id: str) -> bytes:
    parts = _tag("Code", code), _tag("Message", message), _tag("Resource", resource), _tag("RequestId", request_id)
    return _document("Error", parts, space="")


def error_of(error: MooncaskError, resource: str, request_id: str) -> bytes:
    return error_document(error.code, error.message, resource, request_id)


def buckets_document(namespaces: Iterable[Namespace], tenant: str) -> bytes:
    """S3 wants a date of creation; namespaces have none, so it is the epoch."""
    buckets = "".join(
        f"<Bucket>{_tag('Name', namespace.spec.name)}{_tag('CreationDate', timestamp(0))}</Bucket>"
        for namespace in namespaces
    )
    owner = f"<Owner>{_tag('ID', tenant)}{_tag('DisplayName', tenant)}</Owner>"
    return _document("ListAllMyBucketsResult", (owner, f"<Buckets>{buckets}</Buckets>"))


def listing_document(namespace: Namespace, request: ListRequest, page: Page, token: str, url_encoded: bool) -> bytes:
    def shown(key: bytes) -> str:
        return quote(key, safe="/") if url_encoded else key_text(namespace, key)

    parts = [
        _tag("Name", namespace.spec.name),
        _tag("Prefix", shown(request.prefix)),
        _tag("Delimiter", shown(request.delimiter)) if request.delimiter else "",
        _tag("MaxKeys", str(request.keys_max)),
        _tag("EncodingType", "url") if url_encoded else "",
        _tag("KeyCount", str(len(page))),
        _tag("IsTruncated", "true" if page.next_after else "false"),
        _tag("ContinuationToken", token) if token else "",
        _tag("NextContinuationToken", token_of(page.next_after)) if page.next_after else "",
    ]
    parts += [_contents(shown(block.key) if not _is_kv(namespace) else block.key.hex(), block) for block in page.blocks]
    parts += [f"<CommonPrefixes>{_tag('Prefix', shown(prefix))}</CommonPrefixes>" for prefix in page.common_prefixes]
    return _document("ListBucketResult", parts)


def etag(checksum: bytes) -> str:
    """The payload's xxh3_128 in hex and quotes: opaque to S3 clients, the same on every node."""
    return f'"{checksum.hex()}"'


def timestamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


def _is_kv(namespace: Namespace) -> bool:
    return namespace.spec.kind == "kv"


def _contents(key: str, block: BlockInfo) -> str:
    fields = (
        _tag("Key", key),
        _tag("LastModified", timestamp(block.created_seconds)),
        _tag("ETag", etag(block.checksum)),
        _tag("Size", str(block.size)),
        _tag("StorageClass", "STANDARD"),
    )
    return f"<Contents>{''.join(fields)}</Contents>"


def _document(name: str, parts: Iterable[str], space: str = _SPACE) -> bytes:
    return f"{_HEAD}<{name}{space}>{''.join(parts)}</{name}>".encode()


def _tag(name: str, text: str) -> str:
    """Characters that XML 1.0 has no place for are shown as U+FFFD; encoding-type=url lists such keys exactly."""
    return f"<{name}>{escape(_CONTROL.sub(chr(0xFFFD), text))}</{name}>"
