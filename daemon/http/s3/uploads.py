"""Multipart uploads: CreateMultipartUpload, UploadPart, CompleteMultipartUpload, AbortMultipartUpload, ListParts and
ListMultipartUploads. UploadPartCopy is `copying.py`; what an upload is made of is `daemon/objects/uploads.py`."""

import asyncio
import base64
import hmac
from collections.abc import Mapping, Sequence

from aiohttp import web

from mooncask.daemon.http.bodies.body import open_body, read_document
from mooncask.daemon.http.bodies.reception import receive
from mooncask.daemon.http.bodies.running_digests import missing_digests
from mooncask.daemon.http.callers.caller import caller_of
from mooncask.daemon.http.query_number import query_number
from mooncask.daemon.http.refused import Refused
from mooncask.daemon.http.s3.buckets import XML
from mooncask.daemon.http.s3.listing import keys_max_of
from mooncask.daemon.http.s3.object_headers import CHECKSUM, put_attributes, put_condition
from mooncask.daemon.http.s3.part_checksums import ALGORITHMS, chosen_type, object_checksum
from mooncask.daemon.http.s3.target import key_text, writable_key
from mooncask.daemon.http.s3.upload_xml import (
    UploadsPage,
    completed_document,
    created_document,
    parse_completion,
    parts_document,
    uploads_document,
)
from mooncask.daemon.objects.manifest import PartRow
from mooncask.daemon.objects.upload_state import PART_NUMBER_MAX, Upload
from mooncask.daemon.service import Service
from mooncask.errors import BadParameter, BadRequest, ObjectTooLarge
from mooncask.tiers.namespace import Namespace

PART_BYTES_MAX = 5 << 30
DOCUMENT_BYTES_MAX = 4 << 20
"""10,000 parts with their checksums."""
PAGE_MAX = 1000


class UploadOperations:
    """One for all requests."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._uploads = service.objects.uploads

    async def create(self, request: web.Request, namespace: Namespace, raw_key: bytes) -> web.StreamResponse:
        """Raises BadRequest, BadParameter, MetadataTooLarge."""
        if namespace.spec.kind == "kv":
            raise BadRequest("blocks of a KV namespace are put in one piece")
        key = writable_key(namespace, raw_key)
        algorithm = _algorithm(request.headers)
        kind = chosen_type(algorithm, request.headers.get(f"{CHECKSUM}type", ""))
        attributes = put_attributes(request.headers, request.headers.get("content-encoding", ""))
        upload = await self._uploads.create(namespace, key, attributes, algorithm, kind)
        headers = {f"{CHECKSUM}algorithm": algorithm.upper(), f"{CHECKSUM}type": kind} if algorithm else {}
        document = created_document(namespace.spec.name, key_text(namespace, key), upload)
        return web.Response(body=document, content_type=XML, headers=headers)

    async def upload_part(self, request: web.Request, namespace: Namespace, raw_key: bytes) -> web.StreamResponse:
        """Raises NoSuchUpload, InvalidPart, and what a writer raises."""
        key, name = writable_key(namespace, raw_key), request.query["uploadId"]
        upload = self._uploads.find(namespace, key, name)
        number = _number(request.query, "partNumber", 0, PART_NUMBER_MAX)
        body = open_body(request, caller_of(request))
        if body.size > PART_BYTES_MAX:
            raise ObjectTooLarge(body.size, PART_BYTES_MAX, "in one part")
        algorithm = upload.record.algorithm
        names = {algorithm} if algorithm else set[str]()
        if self._service.config.s3.etag == "md5":
            names.add("md5")
        writer = await self._uploads.part_writer(namespace, key, name, number, body.size)
        try:
            received = await receive(body, writer, names, self._service.config.http)
            checksum = base64.b64encode(received.digests[algorithm]).decode() if algorithm else ""
            part = await writer.finish(received.etag(), checksum)
        finally:
            writer.abort()
        headers = {"ETag": f'"{part.row.etag}"', **{CHECKSUM + n: value for n, value in received.checksums.items()}}
        if algorithm:
            headers[CHECKSUM + algorithm] = checksum
        return web.Response(status=200, headers=headers)

    async def complete(self, request: web.Request, namespace: Namespace, raw_key: bytes) -> web.StreamResponse:
        """Raises NoSuchUpload, InvalidPart, InvalidPartOrder, PartTooSmall, PreconditionFailed, MalformedXml."""
        key, name = writable_key(namespace, raw_key), request.query["uploadId"]
        text = await read_document(
            request, caller_of(request), DOCUMENT_BYTES_MAX, self._service.config.http, checksums_of_object=True
        )
        algorithm = self._uploads.algorithm_of(name)
        wanted = await asyncio.to_thread(parse_completion, text, algorithm)
        info = await self._uploads.complete(
            namespace,
            key,
            name,
            wanted,
            put_condition(request.headers),
            lambda upload, rows: _checksums(upload, rows, request.headers),
            wait_durable=self._service.config.s3.ack == "durable",
        )
        location = f"{request.scheme}://{request.host}{request.path}"
        document = completed_document(location, namespace.spec.name, key_text(namespace, key), info)
        return web.Response(body=document, content_type=XML)

    async def abort(self, request: web.Request, namespace: Namespace, raw_key: bytes) -> web.StreamResponse:
        """Raises NoSuchUpload."""
        await self._uploads.abort(namespace, writable_key(namespace, raw_key), request.query["uploadId"])
        return web.Response(status=204)

    async def list_parts(self, request: web.Request, namespace: Namespace, raw_key: bytes) -> web.StreamResponse:
        """Raises NoSuchUpload, BadParameter."""
        key, name = writable_key(namespace, raw_key), request.query["uploadId"]
        most = keys_max_of(request.query, "max-parts", PAGE_MAX)
        marker = _number(request.query, "part-number-marker", 0, 1 << 31)
        upload = self._uploads.find(namespace, key, name)
        found = self._uploads.list_parts(namespace, key, name, marker, most + 1)
        more = len(found) > most
        document = parts_document(
            namespace.spec.name, key_text(namespace, key), upload, found[:most], marker, most, more=more
        )
        return web.Response(body=document, content_type=XML)

    async def list_uploads(self, request: web.Request, namespace: Namespace) -> web.StreamResponse:
        """Raises BadParameter."""
        page = uploads_page(self._uploads.list_uploads(namespace), request.query)
        return web.Response(body=uploads_document(namespace.spec.name, page), content_type=XML)


def uploads_page(uploads: Sequence[Upload], query: Mapping[str, str]) -> UploadsPage:
    """One page of `uploads`, which are in order. Pure; raises BadParameter."""
    encoding = query.get("encoding-type", "")
    if encoding not in ("", "url"):
        raise BadParameter("encoding-type", encoding, "url is the only one")
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    key_marker, id_marker = query.get("key-marker", ""), query.get("upload-id-marker", "")
    page = UploadsPage(
        prefix, delimiter, key_marker, id_marker, keys_max_of(query, "max-uploads", PAGE_MAX), bool(encoding)
    )
    last = ("", "")
    for upload in _behind(uploads, key_marker, id_marker):
        key = upload.record.key.decode("utf-8", "surrogateescape")
        group = _group(key, prefix, delimiter)
        listed_before = group and (group == key_marker or group in page.common_prefixes[-1:])
        if not key.startswith(prefix) or listed_before:
            continue
        if len(page.uploads) + len(page.common_prefixes) >= page.most:
            page.next_key, page.next_id = last
            break
        if group:
            page.common_prefixes.append(group)
        else:
            page.uploads.append(upload)
        last = (group or key, "" if group else upload.name)
    return page


def _behind(uploads: Sequence[Upload], key_marker: str, id_marker: str) -> Sequence[Upload]:
    """Those behind the upload that the markers name; where it is gone, or none is named, behind all of that key."""
    marker = key_marker.encode("utf-8", "surrogateescape")
    for index, upload in enumerate(uploads):
        if upload.name == id_marker and upload.record.key == marker:
            return uploads[index + 1 :]
    return [upload for upload in uploads if upload.record.key > marker]


def _group(key: str, prefix: str, delimiter: str) -> str:
    end = key.find(delimiter, len(prefix)) if delimiter else -1
    return key[: end + len(delimiter)] if end >= 0 else ""


def _checksums(upload: Upload, rows: Sequence[PartRow], headers: Mapping[str, str]) -> dict[str, str]:
    """What the object's checksum is. Raises Refused when the client expects another one, or another length."""
    record = upload.record
    size = sum(row.size for row in rows)
    said_size = headers.get("x-amz-mp-object-size", str(size))
    if said_size != str(size):
        raise Refused(400, "InvalidRequest", f"x-amz-mp-object-size is {said_size[:20]}, the parts have {size} bytes")
    checksum = object_checksum(rows, record.algorithm, record.checksum_type)
    said = headers.get(CHECKSUM + record.algorithm, "") if record.algorithm else ""
    if said and checksum and not hmac.compare_digest(said.partition("-")[0], checksum.partition("-")[0]):
        raise Refused(400, "BadDigest", f"{CHECKSUM}{record.algorithm} is {said[:80]}, the object's {checksum}")
    return {record.algorithm: checksum} if checksum else {}


def _algorithm(headers: Mapping[str, str]) -> str:
    text = headers.get(f"{CHECKSUM}algorithm", "")
    name = text.lower()
    if name and (name not in ALGORITHMS or name in missing_digests()):
        known = ", ".join(sorted(name.upper() for name in ALGORITHMS.keys() - missing_digests()))
        raise BadParameter(f"{CHECKSUM}algorithm", text, f"known here: {known}")
    return name


def _number(query: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = query.get(name, str(least))
    return query_number(name, text, least, most)
