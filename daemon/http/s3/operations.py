"""S3's operations as data: which method, level and query names make which. Pure.

A query name that S3 gives a meaning, but that stands in no row here, makes a request an operation that this API does not
have: a PUT with ?tagging must never be taken for a plain PUT. New operations are new rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import lru_cache


class Operation(Enum):
    """Each is called as AWS calls it."""

    LIST_BUCKETS = "ListBuckets"
    CREATE_BUCKET = "CreateBucket"
    HEAD_BUCKET = "HeadBucket"
    DELETE_BUCKET = "DeleteBucket"
    GET_BUCKET_LOCATION = "GetBucketLocation"
    GET_BUCKET_VERSIONING = "GetBucketVersioning"
    GET_BUCKET_ACL = "GetBucketAcl"
    LIST_OBJECTS = "ListObjects"
    LIST_OBJECTS_V2 = "ListObjectsV2"
    LIST_UPLOADS = "ListMultipartUploads"
    DELETE_OBJECTS = "DeleteObjects"
    PUT_OBJECT = "PutObject"
    COPY_OBJECT = "CopyObject"
    GET_OBJECT = "GetObject"
    HEAD_OBJECT = "HeadObject"
    DELETE_OBJECT = "DeleteObject"
    GET_OBJECT_ATTRIBUTES = "GetObjectAttributes"
    GET_OBJECT_ACL = "GetObjectAcl"
    GET_OBJECT_TAGGING = "GetObjectTagging"
    CREATE_UPLOAD = "CreateMultipartUpload"
    UPLOAD_PART = "UploadPart"
    UPLOAD_PART_COPY = "UploadPartCopy"
    COMPLETE_UPLOAD = "CompleteMultipartUpload"
    ABORT_UPLOAD = "AbortMultipartUpload"
    LIST_PARTS = "ListParts"


class Level(StrEnum):
    SERVICE = "Service"
    BUCKET = "Bucket"
    OBJECT = "Object"


WRITES = frozenset(
    {
        Operation.CREATE_BUCKET,
        Operation.DELETE_BUCKET,
        Operation.DELETE_OBJECTS,
        Operation.PUT_OBJECT,
        Operation.COPY_OBJECT,
        Operation.DELETE_OBJECT,
        Operation.CREATE_UPLOAD,
        Operation.UPLOAD_PART,
        Operation.UPLOAD_PART_COPY,
        Operation.COMPLETE_UPLOAD,
        Operation.ABORT_UPLOAD,
    }
)
"""What a caller without the right to write is refused."""

_LIST = frozenset({"prefix", "delimiter", "max-keys", "encoding-type"})
_RESPONSE = frozenset(
    f"response-{name}"
    for name in (
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "expires",
    )
)
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Row:
    """One operation: the query names that make it (`wanted`, all of them) and those it takes beside (`allowed`)."""

    operation: Operation
    wanted: frozenset[str] = _NONE
    allowed: frozenset[str] = _NONE


def _row(operation: Operation, *wanted: str, allowed: frozenset[str] = _NONE) -> Row:
    return Row(operation, frozenset(wanted), allowed)


_ROWS: Mapping[tuple[Level, str], tuple[Row, ...]] = {
    (Level.SERVICE, "GET"): (
        _row(
            Operation.LIST_BUCKETS,
            allowed=frozenset({"max-buckets", "continuation-token", "prefix", "bucket-region"}),
        ),
    ),
    (Level.BUCKET, "PUT"): (_row(Operation.CREATE_BUCKET),),
    (Level.BUCKET, "HEAD"): (_row(Operation.HEAD_BUCKET),),
    (Level.BUCKET, "DELETE"): (_row(Operation.DELETE_BUCKET),),
    (Level.BUCKET, "POST"): (_row(Operation.DELETE_OBJECTS, "delete"),),
    (Level.BUCKET, "GET"): (
        _row(
            Operation.LIST_OBJECTS_V2,
            "list-type",
            allowed=_LIST | {"continuation-token", "start-after", "fetch-owner"},
        ),
        _row(Operation.LIST_OBJECTS, allowed=_LIST | {"marker"}),
        _row(Operation.GET_BUCKET_LOCATION, "location"),
        _row(Operation.GET_BUCKET_VERSIONING, "versioning"),
        _row(Operation.GET_BUCKET_ACL, "acl"),
        _row(
            Operation.LIST_UPLOADS,
            "uploads",
            allowed=frozenset(
                {"prefix", "delimiter", "encoding-type", "max-uploads", "key-marker", "upload-id-marker"}
            ),
        ),
    ),
    (Level.OBJECT, "PUT"): (
        _row(Operation.PUT_OBJECT),
        _row(Operation.UPLOAD_PART, "partNumber", "uploadId"),
    ),
    (Level.OBJECT, "GET"): (
        _row(Operation.GET_OBJECT, allowed=_RESPONSE | {"partNumber", "versionId"}),
        _row(Operation.LIST_PARTS, "uploadId", allowed=frozenset({"max-parts", "part-number-marker", "encoding-type"})),
        _row(Operation.GET_OBJECT_ATTRIBUTES, "attributes", allowed=frozenset({"versionId"})),
        _row(Operation.GET_OBJECT_ACL, "acl", allowed=frozenset({"versionId"})),
        _row(Operation.GET_OBJECT_TAGGING, "tagging", allowed=frozenset({"versionId"})),
    ),
    (Level.OBJECT, "HEAD"): (_row(Operation.HEAD_OBJECT, allowed=_RESPONSE | {"partNumber", "versionId"}),),
    (Level.OBJECT, "DELETE"): (
        _row(Operation.DELETE_OBJECT, allowed=frozenset({"versionId"})),
        _row(Operation.ABORT_UPLOAD, "uploadId"),
    ),
    (Level.OBJECT, "POST"): (
        _row(Operation.CREATE_UPLOAD, "uploads"),
        _row(Operation.COMPLETE_UPLOAD, "uploadId"),
    ),
}

_OF_COPIES = {
    Operation.PUT_OBJECT: Operation.COPY_OBJECT,
    Operation.UPLOAD_PART: Operation.UPLOAD_PART_COPY,
}


@lru_cache(512)
def find_operation(level: Level, method: str, names: frozenset[str], is_copy: bool) -> Operation | None:
    """The operation that a request with these query names is; None for one that this API does not have.

    `is_copy`: whether the request names a source to copy from.
    """
    for row in _ROWS.get((level, method), ()):
        if row.wanted <= names <= row.wanted | row.allowed:
            return _OF_COPIES.get(row.operation, row.operation) if is_copy else row.operation
    return None


_SUBRESOURCES = {
    "accelerate": "AccelerateConfiguration",
    "acl": "Acl",
    "analytics": "AnalyticsConfiguration",
    "cors": "Cors",
    "encryption": "Encryption",
    "intelligent-tiering": "IntelligentTieringConfiguration",
    "inventory": "InventoryConfiguration",
    "legal-hold": "LegalHold",
    "lifecycle": "LifecycleConfiguration",
    "logging": "Logging",
    "metrics": "MetricsConfiguration",
    "notification": "NotificationConfiguration",
    "object-lock": "LockConfiguration",
    "ownershipControls": "OwnershipControls",
    "policy": "Policy",
    "policyStatus": "PolicyStatus",
    "publicAccessBlock": "PublicAccessBlock",
    "replication": "Replication",
    "requestPayment": "RequestPayment",
    "retention": "Retention",
    "tagging": "Tagging",
    "torrent": "Torrent",
    "versioning": "Versioning",
    "website": "Website",
}
_WHOLE_NAMES = {
    "append": "AppendObject",
    "restore": "RestoreObject",
    "select": "SelectObjectContent",
    "session": "CreateSession",
    "versions": "ListObjectVersions",
    "renameObject": "RenameObject",
}


def unknown_name(level: Level, method: str, names: frozenset[str]) -> str:
    """What AWS calls the operation that this API does not have, as far as that can be told; else its method and query."""
    for name in sorted(names):
        if name in _WHOLE_NAMES:
            return _WHOLE_NAMES[name]
        if name in _SUBRESOURCES:
            return f"{method.capitalize()}{level}{_SUBRESOURCES[name]}"
    article = "an" if level is Level.OBJECT else "a"
    return f"{method[:16]} of {article} {level.lower()}" + "".join(f" with ?{name[:40]}" for name in sorted(names)[:3])
