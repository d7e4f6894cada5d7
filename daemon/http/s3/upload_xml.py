"""XML of uploads in parts: what clients send to complete one, and what the answers look like. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from mooncask.daemon.http.s3.xml import document, tag, timestamp
from mooncask.daemon.http.s3.xml_request import Element, parse_xml
from mooncask.daemon.objects.attributes import ObjectInfo
from mooncask.daemon.objects.upload_state import PART_NUMBER_MAX, PartRecord, Upload, WantedPart
from mooncask.errors import MalformedXml

CHECKSUM_TAGS = {
    "crc32": "ChecksumCRC32",
    "crc32c": "ChecksumCRC32C",
    "crc64nvme": "ChecksumCRC64NVME",
    "sha1": "ChecksumSHA1",
    "sha256": "ChecksumSHA256",
}


@dataclass(slots=True)
class UploadsPage:
    """What ListMultipartUploads was asked for, and what of it is on this page."""

    prefix: str
    delimiter: str
    key_marker: str
    id_marker: str
    most: int
    url_encoded: bool
    uploads: list[Upload] = field(default_factory=list)
    common_prefixes: list[str] = field(default_factory=list)
    next_key: str = ""
    """Where the next page goes on; empty: there is none."""
    next_id: str = ""


def parse_completion(text: bytes, algorithm: str) -> list[WantedPart]:
    """Raises MalformedXml."""
    root = parse_xml(text, "CompleteMultipartUpload")
    parts = [_wanted(element, algorithm) for element in root.all("Part")]
    if not 0 < len(parts) <= PART_NUMBER_MAX:
        raise MalformedXml(f"{len(parts)} parts; 1 to {PART_NUMBER_MAX} make an object")
    return parts


def _wanted(element: Element, algorithm: str) -> WantedPart:
    number = element.value("PartNumber").strip()
    if not number.isascii() or not number.isdigit() or len(number) > 9:
        raise MalformedXml("a Part without a PartNumber")
    checksum = element.value(CHECKSUM_TAGS[algorithm]).strip() if algorithm in CHECKSUM_TAGS else ""
    return WantedPart(int(number), element.value("ETag").strip().strip('"'), checksum)


def created_document(bucket: str, key: str, upload: Upload) -> bytes:
    return document(
        "InitiateMultipartUploadResult", (tag("Bucket", bucket), tag("Key", key), tag("UploadId", upload.name))
    )


def completed_document(location: str, bucket: str, key: str, info: ObjectInfo) -> bytes:
    parts = [tag("Location", location), tag("Bucket", bucket), tag("Key", key), tag("ETag", f'"{info.etag}"')]
    if info.attributes is not None:
        parts += _checksums(info.attributes.checksums.items())
        parts.append(tag("ChecksumType", info.attributes.checksum_type) if info.attributes.checksum_type else "")
    return document("CompleteMultipartUploadResult", parts)


def parts_document(
    bucket: str, key: str, upload: Upload, parts: Sequence[PartRecord], marker: int, most: int, *, more: bool
) -> bytes:
    fields = [
        tag("Bucket", bucket),
        tag("Key", key),
        tag("UploadId", upload.name),
        _who("Initiator", upload),
        _who("Owner", upload),
        tag("StorageClass", "STANDARD"),
        tag("PartNumberMarker", str(marker)),
        tag("NextPartNumberMarker", str(parts[-1].row.part if parts else marker)),
        tag("MaxParts", str(most)),
        tag("IsTruncated", "true" if more else "false"),
        *_algorithm(upload),
        *(_part(upload, part) for part in parts),
    ]
    return document("ListPartsResult", fields)


def uploads_document(bucket: str, page: UploadsPage) -> bytes:
    def shown(text: str) -> str:
        return quote(text.encode("utf-8", "surrogateescape"), safe="/") if page.url_encoded else text

    truncated = bool(page.next_key)
    fields = [
        tag("Bucket", bucket),
        tag("KeyMarker", shown(page.key_marker)),
        tag("UploadIdMarker", page.id_marker),
        tag("NextKeyMarker", shown(page.next_key)) if truncated else "",
        tag("NextUploadIdMarker", page.next_id) if truncated else "",
        tag("Prefix", shown(page.prefix)),
        tag("Delimiter", shown(page.delimiter)) if page.delimiter else "",
        tag("EncodingType", "url") if page.url_encoded else "",
        tag("MaxUploads", str(page.most)),
        tag("IsTruncated", "true" if truncated else "false"),
        *(_upload(upload, shown) for upload in page.uploads),
        *(f"<CommonPrefixes>{tag('Prefix', shown(prefix))}</CommonPrefixes>" for prefix in page.common_prefixes),
    ]
    return document("ListMultipartUploadsResult", fields)


def _part(upload: Upload, part: PartRecord) -> str:
    checksum = [(upload.record.algorithm, part.row.checksum)] if part.row.checksum else []
    fields = (
        tag("PartNumber", str(part.row.part)),
        tag("LastModified", timestamp(part.modified)),
        tag("ETag", f'"{part.row.etag}"'),
        tag("Size", str(part.row.size)),
        *_checksums(checksum),
    )
    return f"<Part>{''.join(fields)}</Part>"


def _upload(upload: Upload, shown: Callable[[str], str]) -> str:
    fields = (
        tag("Key", shown(upload.record.key.decode("utf-8", "surrogateescape"))),
        tag("UploadId", upload.name),
        _who("Initiator", upload),
        _who("Owner", upload),
        tag("StorageClass", "STANDARD"),
        tag("Initiated", timestamp(upload.record.started)),
        *_algorithm(upload),
    )
    return f"<Upload>{''.join(fields)}</Upload>"


def _who(name: str, upload: Upload) -> str:
    tenant = upload.owner.spec.tenant
    return f"<{name}>{tag('ID', tenant)}{tag('DisplayName', tenant)}</{name}>"


def _algorithm(upload: Upload) -> list[str]:
    record = upload.record
    if not record.algorithm:
        return []
    return [tag("ChecksumAlgorithm", record.algorithm.upper()), tag("ChecksumType", record.checksum_type)]


def _checksums(found: Iterable[tuple[str, str]]) -> list[str]:
    return [tag(CHECKSUM_TAGS[name], value) for name, value in found if name in CHECKSUM_TAGS]
