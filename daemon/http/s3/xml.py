"""S3's XML answers. Pure: data in, bytes out."""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import quote
from xml.sax.saxutils import escape

from mooncask.daemon.http.s3.listing import ListRequest, Page, marker_of, token_of
from mooncask.daemon.http.s3.target import key_text
from mooncask.daemon.objects.attributes import ObjectInfo, object_info
from mooncask.errors import MooncaskError
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.requests import BlockInfo

_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
_SPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_ENTITIES = {"\r": "&#13;"}
"""A parser reads a bare carriage return as a line feed."""
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")


def error_document(
    code: str, message: str, resource: str, request_id: str, details: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    fields = {"Code": code, "Message": message, **details, "Resource": resource, "RequestId": request_id}
    return document("Error", [tag(name, text) for name, text in fields.items()], space="")


def error_of(error: MooncaskError, resource: str, request_id: str) -> bytes:
    return error_document(error.code, error.message, resource, request_id)


def buckets_document(namespaces: Iterable[Namespace], tenant: str, token: str = "", prefix: str = "") -> bytes:
    """S3 wants a date of creation; namespaces have none, so it is the epoch."""
    buckets = "".join(
        f"<Bucket>{tag('Name', namespace.spec.name)}{tag('CreationDate', timestamp(0))}</Bucket>"
        for namespace in namespaces
    )
    parts = (
        _owner(tenant),
        f"<Buckets>{buckets}</Buckets>",
        tag("ContinuationToken", token) if token else "",
        tag("Prefix", prefix) if prefix else "",
    )
    return document("ListAllMyBucketsResult", parts)


def location_document(region: str) -> bytes:
    """S3 calls its first region by no name."""
    return document("LocationConstraint", (escape("" if region == "us-east-1" else region),))


def versioning_document() -> bytes:
    """Empty: no versions were ever kept."""
    return document("VersioningConfiguration", ())


def acl_document(tenant: str) -> bytes:
    """The one list there is: everything to the owner, nothing to anybody else."""
    grantee = (
        '<Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser">'
        f"{tag('ID', tenant)}{tag('DisplayName', tenant)}</Grantee>"
    )
    grants = f"<AccessControlList><Grant>{grantee}{tag('Permission', 'FULL_CONTROL')}</Grant></AccessControlList>"
    return document("AccessControlPolicy", (_owner(tenant), grants))


def tagging_document() -> bytes:
    """Nothing has tags."""
    return document("Tagging", ("<TagSet></TagSet>",))


@dataclass(frozen=True, slots=True)
class KeyFailure:
    """One key of a DeleteObjects that was not deleted."""

    key: str
    code: str
    message: str


def deleted_document(deleted: Iterable[str], failures: Iterable[KeyFailure]) -> bytes:
    parts = [f"<Deleted>{tag('Key', key)}</Deleted>" for key in deleted]
    parts += [
        f"<Error>{tag('Key', failure.key)}{tag('Code', failure.code)}{tag('Message', failure.message)}</Error>"
        for failure in failures
    ]
    return document("DeleteResult", parts)


def copied_document(name: str, etag: str, modified_seconds: float) -> bytes:
    """`name` is CopyObjectResult or CopyPartResult; `etag` has no quotes."""
    return document(name, (tag("LastModified", timestamp(modified_seconds)), tag("ETag", f'"{etag}"')))


_CHECKSUM_TAGS = {name: f"Checksum{name.upper()}" for name in ("crc32", "crc32c", "crc64nvme", "sha1", "sha256")}


def attributes_document(info: ObjectInfo, wanted: frozenset[str]) -> bytes:
    """GetObjectAttributes: of what is `wanted`, what there is. The ETag has no quotes here."""
    attributes = info.attributes
    checksums = attributes.checksums if attributes is not None else {}
    tags = [tag(_CHECKSUM_TAGS[name], value) for name, value in checksums.items() if name in _CHECKSUM_TAGS]
    if tags and attributes is not None and attributes.checksum_type:
        tags.append(tag("ChecksumType", attributes.checksum_type))
    parts = str(attributes.parts) if attributes is not None and attributes.parts else ""
    found = {
        "ETag": tag("ETag", info.etag),
        "Checksum": f"<Checksum>{''.join(tags)}</Checksum>" if tags else "",
        "ObjectParts": f"<ObjectParts>{tag('TotalPartsCount', parts)}</ObjectParts>" if parts else "",
        "StorageClass": tag("StorageClass", "STANDARD"),
        "ObjectSize": tag("ObjectSize", str(info.size)),
    }
    return document("GetObjectAttributesResponse", [text for name, text in found.items() if name in wanted])


def listing_document(namespace: Namespace, request: ListRequest, page: Page) -> bytes:
    def shown(key: bytes) -> str:
        if _is_kv(namespace):
            return key.hex()
        return quote(key, safe="/") if request.url_encoded else key_text(namespace, key)

    parts = [
        tag("Name", namespace.spec.name),
        tag("Prefix", shown(request.prefix)),
        tag("Delimiter", shown(request.delimiter)) if request.delimiter else "",
        tag("MaxKeys", str(request.keys_max)),
        tag("EncodingType", "url") if request.url_encoded else "",
        tag("IsTruncated", "true" if page.next_after else "false"),
        *_listing_ends(request, page, shown),
    ]
    owner = _owner(namespace.spec.tenant) if request.with_owner else ""
    parts += [_contents(shown(block.key), block, owner) for block in page.blocks]
    parts += [f"<CommonPrefixes>{tag('Prefix', shown(prefix))}</CommonPrefixes>" for prefix in page.common_prefixes]
    return document("ListBucketResult", parts)


def _listing_ends(request: ListRequest, page: Page, shown: Callable[[bytes], str]) -> list[str]:
    """Where the page began and where the next one does, in the words of the listing's version."""
    if request.version == 1:
        next_marker = marker_of(page.next_after, request.delimiter)
        return [tag("Marker", shown(request.start)), tag("NextMarker", shown(next_marker)) if page.next_after else ""]
    return [
        tag("KeyCount", str(len(page))),
        tag("StartAfter", shown(request.start)) if request.start else "",
        tag("ContinuationToken", request.token) if request.token else "",
        tag("NextContinuationToken", token_of(page.next_after)) if page.next_after else "",
    ]


def timestamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


def _is_kv(namespace: Namespace) -> bool:
    return namespace.spec.kind == "kv"


def _owner(tenant: str) -> str:
    return f"<Owner>{tag('ID', tenant)}{tag('DisplayName', tenant)}</Owner>"


def _contents(key: str, block: BlockInfo, owner: str) -> str:
    info = object_info(block)
    fields = (
        tag("Key", key),
        tag("LastModified", timestamp(info.modified_seconds)),
        tag("ETag", f'"{info.etag}"'),
        tag("Size", str(info.size)),
        owner,
        tag("StorageClass", "STANDARD"),
    )
    return f"<Contents>{''.join(fields)}</Contents>"


def document(name: str, parts: Iterable[str], space: str = _SPACE) -> bytes:
    return f"{_HEAD}<{name}{space}>{''.join(parts)}</{name}>".encode()


def tag(name: str, text: str) -> str:
    """Characters that XML 1.0 has no place for are shown as U+FFFD; encoding-type=url lists such keys exactly."""
    return f"<{name}>{escape(_CONTROL.sub(chr(0xFFFD), text), _ENTITIES)}</{name}>"
