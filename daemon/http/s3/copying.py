"""CopyObject and UploadPartCopy: from one object's leased extents into the places of another, piece by piece.

Memory for a copy is that of a read and a write at a time, however long the object is.
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from aiohttp import web

from mooncask.daemon.http.bodies.running_digests import DIGESTS, RunningDigests, missing_digests
from mooncask.daemon.http.callers.caller import caller_of
from mooncask.daemon.http.query_number import query_number
from mooncask.daemon.http.s3.buckets import XML
from mooncask.daemon.http.s3.copy_source import COPY_SOURCE, check_source, copied_span, parse_copy_source
from mooncask.daemon.http.s3.object_headers import put_attributes, put_condition
from mooncask.daemon.http.s3.range_request import Span
from mooncask.daemon.http.s3.target import block_key, writable_key
from mooncask.daemon.http.s3.xml import copied_document
from mooncask.daemon.objects.attributes import ObjectAttributes, ObjectInfo
from mooncask.daemon.objects.reader import ObjectReader
from mooncask.daemon.objects.store import Objects
from mooncask.daemon.objects.upload_state import PART_NUMBER_MAX
from mooncask.daemon.service import Service
from mooncask.errors import BadParameter, BadRequest
from mooncask.tiers.namespace import Namespace

Write = Callable[[memoryview], Awaitable[None]]

STEP_BYTES = 1 << 20
"""Copied at a time on the event loop: some tenths of a millisecond."""
DIRECTIVE = "x-amz-metadata-directive"
ALGORITHM = "x-amz-checksum-algorithm"
FULL_OBJECT = "FULL_OBJECT"


@dataclass(frozen=True, slots=True)
class Source:
    """An object that is being copied from; `reader` is to be closed."""

    namespace: Namespace
    reader: ObjectReader

    @property
    def info(self) -> ObjectInfo:
        return self.reader.info


class Copying:
    """One for all requests."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def _objects(self) -> Objects:
        return self._service.objects

    async def copy_object(self, request: web.Request, namespace: Namespace, raw_key: bytes) -> web.StreamResponse:
        """Raises NoSuchBlock, PreconditionFailed, BadRequest, and what a writer raises."""
        key = writable_key(namespace, raw_key)
        condition = put_condition(request.headers)
        source = await self._open(request)
        with source.reader:
            attributes = self._attributes(request, source, source.namespace is namespace and source.info.key == key)
            names = self._names(source.info, attributes, _algorithm(request))
            wait = self._service.config.s3.ack == "durable"
            writer = await self._objects.writer(namespace, key, source.info.size, condition, wait_durable=wait)
            try:
                found = await self._copy(source, Span(0, source.info.size), writer.write, names)
                described = None if namespace.spec.kind == "kv" else _described(attributes, found)
                stored = await writer.finish(described)
            finally:
                writer.abort()
        document = copied_document("CopyObjectResult", stored.etag, stored.modified_seconds)
        return web.Response(body=document, content_type=XML)

    async def copy_part(self, request: web.Request, namespace: Namespace, raw_key: bytes) -> web.StreamResponse:
        """UploadPartCopy. Raises as `copy_object`, and NoSuchUpload, InvalidPart."""
        key, upload_id = writable_key(namespace, raw_key), request.query["uploadId"]
        upload = self._objects.uploads.find(namespace, key, upload_id)
        part = query_number("partNumber", request.query["partNumber"], 0, PART_NUMBER_MAX)
        source = await self._open(request)
        with source.reader:
            span = copied_span(request.headers.get(f"{COPY_SOURCE}-range"), source.info.size)
            algorithm = upload.record.algorithm
            names = self._etag_names() | ({algorithm} if algorithm in DIGESTS else set())
            writer = await self._objects.uploads.part_writer(namespace, key, upload_id, part, span.stop - span.start)
            try:
                found = await self._copy(source, span, writer.write, names)
                checksum = base64.b64encode(found[algorithm]).decode() if algorithm in found else ""
                record = await writer.finish(_md5_of(found), checksum)
            finally:
                writer.abort()
        document = copied_document("CopyPartResult", record.row.etag, record.modified)
        return web.Response(body=document, content_type=XML)

    async def _open(self, request: web.Request) -> Source:
        """Raises BadParameter, NoSuchNamespace, AccessDenied, NoSuchBlock, PreconditionFailed."""
        named = parse_copy_source(request.headers[COPY_SOURCE])
        namespace = self._service.door.find(caller_of(request).tenant, named.bucket)
        reader = await self._objects.open(namespace, block_key(namespace, named.key))
        try:
            check_source(request.headers, reader.info)
        except BaseException:
            reader.close()
            raise
        return Source(namespace, reader)

    def _attributes(self, request: web.Request, source: Source, is_itself: bool) -> ObjectAttributes:
        """The copy's, with the source's ETag and checksums where they are true of the copy as well. Raises BadRequest."""
        directive = request.headers.get(DIRECTIVE, "COPY")
        if directive not in ("COPY", "REPLACE"):
            raise BadParameter(DIRECTIVE, directive, "COPY or REPLACE")
        if is_itself and directive == "COPY":
            raise BadRequest(f"an object is copied onto itself only to change its metadata, with {DIRECTIVE}: REPLACE")
        have = source.info.attributes or ObjectAttributes()
        whole = have.checksum_type == FULL_OBJECT
        said = (
            put_attributes(request.headers, request.headers.get("content-encoding", ""))
            if directive == "REPLACE"
            else have
        )
        return msgspec.structs.replace(
            said,
            etag="" if "-" in source.info.etag else source.info.etag,
            checksums=have.checksums if whole else {},
            checksum_type=FULL_OBJECT if whole and have.checksums else "",
            parts=0,
        )

    def _names(self, source: ObjectInfo, attributes: ObjectAttributes, asked: str) -> set[str]:
        """The digests that are to be computed on the way: what can't be taken over, or is asked for anew."""
        names = set() if attributes.etag else self._etag_names()
        had = source.attributes.checksums if source.attributes is not None else {}
        names |= {asked} if asked else {name for name in had if name not in attributes.checksums and name in DIGESTS}
        return names - missing_digests()

    def _etag_names(self) -> set[str]:
        return {"md5"} if self._service.config.s3.etag == "md5" else set()

    async def _copy(self, source: Source, span: Span, write: Write, names: set[str]) -> dict[str, bytes]:
        """The digests of these bytes."""
        store, digests = self._service.store, RunningDigests(names)
        async for piece in source.reader.pieces(span.start, span.stop):
            view = store.view(piece.extent)[piece.start : piece.stop]
            try:
                await digests.feed(view)
                for begin in range(0, view.nbytes, STEP_BYTES):
                    await write(view[begin : begin + STEP_BYTES])
                    await asyncio.sleep(0)
                await digests.finish()
            finally:
                await digests.cancel()  # nothing reads the extent any more when it goes back
                view.release()
                store.drop(piece.extent)
        return await digests.finish()


def _described(attributes: ObjectAttributes, found: dict[str, bytes]) -> ObjectAttributes:
    """With what was computed on the way."""
    computed = {name: base64.b64encode(digest).decode() for name, digest in found.items() if name != "md5"}
    checksums = computed or attributes.checksums
    return msgspec.structs.replace(
        attributes,
        etag=attributes.etag or _md5_of(found),
        checksums=checksums,
        checksum_type=FULL_OBJECT if checksums else "",
    )


def _md5_of(found: dict[str, bytes]) -> str:
    return found["md5"].hex() if "md5" in found else ""


def _algorithm(request: web.Request) -> str:
    """The checksum that the copy shall have; empty: as its source. Raises BadParameter."""
    text = request.headers.get(ALGORITHM, "")
    name = text.lower()
    if name and (name not in DIGESTS or name == "md5" or name in missing_digests()):
        raise BadParameter(ALGORITHM, text, "CRC32, CRC32C, CRC64NVME, SHA1 or SHA256, as far as this daemon has them")
    return name
