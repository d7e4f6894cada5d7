"""PutObject, GetObject, HeadObject and DeleteObject. Bodies stream, whatever the object's length.

How attributes are spelt: `object_headers.py`. What decides between 200, 304 and 412: `conditions.py`. The bytes' way in and out:
`reception.py`, `sending.py`. What an object is made of: `daemon/objects/`.
"""

import contextlib
import time
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from mooncask.daemon.config import HttpSection
from mooncask.daemon.http.bodies.body import open_body
from mooncask.daemon.http.bodies.reception import Digested, receive
from mooncask.daemon.http.callers.caller import caller_of
from mooncask.daemon.http.query_number import query_number
from mooncask.daemon.http.s3.conditions import not_modified, range_counts
from mooncask.daemon.http.s3.object_headers import (
    OWN_DIGEST,
    checksum_headers,
    object_headers,
    own_digest,
    put_attributes,
    put_condition,
)
from mooncask.daemon.http.s3.range_request import Span, requested_span
from mooncask.daemon.http.s3.target import block_key, key_text, writable_key
from mooncask.daemon.http.sending import send
from mooncask.daemon.http.small_answer import SmallAnswer
from mooncask.daemon.objects.attributes import ObjectAttributes, ObjectInfo, encode_attributes
from mooncask.daemon.objects.manifest import Manifest
from mooncask.daemon.objects.upload_state import PART_NUMBER_MAX
from mooncask.daemon.objects.writer import ObjectWriter
from mooncask.daemon.service import Service
from mooncask.errors import BadParameter, BadRequest, NoSuchBlock, OutOfBounds
from mooncask.tiers.namespace import Namespace

FULL_OBJECT = "FULL_OBJECT"
COPIED_BYTES_MAX = 64 << 10
"""So little is copied and sent with its head in one call: a lease for the time of sending costs more."""
PULL_SECONDS = 10.0
"""What a GET or HEAD waits for a KV block that another node has."""
_NOTHING: Mapping[str, str] = {}


class _Answer(NamedTuple):
    """What is answered, before it begins; `span` are the object's bytes that are its body, None = no body."""

    status: int
    headers: CIMultiDict[str]
    span: Span | None

    def response(self) -> web.StreamResponse:
        """One whose body, if it has any, is yet to be sent."""
        if self.span is None:
            return web.Response(status=self.status, headers=self.headers)
        response = web.StreamResponse(status=self.status, headers=self.headers)
        response.content_length = self.span.stop - self.span.start
        return response


class Objects:
    """The operations on objects, in the namespace that the router found. One for all requests."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._objects = service.objects

    @property
    def _config(self) -> HttpSection:
        """The one in force: a reload replaces it."""
        return self._service.config.http

    # --- out ---

    async def get(self, request: web.Request, namespace: Namespace, raw_key: bytes) -> web.StreamResponse:
        key = block_key(namespace, raw_key)
        self._service.note_get(namespace, key)
        await self._service.bring(namespace, key, time.monotonic() + PULL_SECONDS)
        with await self._objects.open(namespace, key) as reader:
            answer = self._answer(request, namespace, reader.info, reader.manifest)
            span = answer.span
            if span is not None and span.stop - span.start <= COPIED_BYTES_MAX:
                body = reader.copy(span.start, span.stop)
                if body is not None:
                    return SmallAnswer(answer.status, answer.headers, body)
            response = answer.response()
            if span is not None and span.start < span.stop:
                await send(request, response, self._service.store, reader, span, self._config)
            return response

    async def head(self, request: web.Request, namespace: Namespace, raw_key: bytes) -> web.StreamResponse:
        """What GET would answer: a block that only another node has is brought as well, since who asks for its length reads it next."""
        key = block_key(namespace, raw_key)
        await self._service.bring(namespace, key, time.monotonic() + PULL_SECONDS)
        if "partNumber" in request.query:
            with await self._objects.open(namespace, key) as reader:
                return self._answer(request, namespace, reader.info, reader.manifest).response()
        info = self._objects.info(namespace, key)
        if info is None:
            raise NoSuchBlock(namespace.spec.name, key_text(namespace, key))
        return self._answer(request, namespace, info, None).response()

    def _answer(
        self, request: web.Request, namespace: Namespace, info: ObjectInfo, manifest: Manifest | None
    ) -> _Answer:
        """Raises PreconditionFailed, OutOfBounds, BadParameter."""
        asked = request.headers
        query: Mapping[str, str] = request.query if request.query_string else _NOTHING
        part = _part_span(asked, query, info, manifest)
        if not_modified(asked, info):  # a client would hold checksums against the body that is not there
            return _Answer(304, object_headers(info, query, with_checksums=False), None)
        whole = "Range" not in asked and part is None
        wants_checksums = whole and asked.get("x-amz-checksum-mode", "").upper() == "ENABLED"
        headers = object_headers(info, query, with_checksums=wants_checksums)
        span = part or (None if whole else _range(request, key_text(namespace, info.key), info))
        if "partNumber" in query and info.attributes is not None and info.attributes.parts:
            headers["x-amz-mp-parts-count"] = str(info.attributes.parts)
        if span is not None:
            headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{info.size}"
            return _Answer(206, headers, span)
        return _Answer(200, headers, Span(0, info.size))

    # --- in ---

    async def put(self, request: web.Request, namespace: Namespace, raw_key: bytes) -> web.StreamResponse:
        key = writable_key(namespace, raw_key)
        body = open_body(request, caller_of(request))
        attributes = _attributes(request, namespace, body.content_encoding)
        digest = own_digest(request.headers)
        wait_durable = self._service.config.s3.ack == "durable"
        condition = put_condition(request.headers)
        writer = await self._objects.writer(namespace, key, body.size, condition, wait_durable=wait_durable)
        try:
            if digest and writer.is_long:
                raise BadRequest(f"{OWN_DIGEST} is for objects of one block")
            if not writer.wants_bytes:  # a KV block that is here: the first one stays
                return _put_answer(await writer.finish())
            names = {"md5"} if attributes is not None and self._service.config.s3.etag == "md5" else set[str]()
            received = await receive(body, writer, names, self._config)
            return _put_answer(await self._finished(writer, attributes, received, digest))
        finally:
            writer.abort()

    async def _finished(
        self, writer: ObjectWriter, attributes: ObjectAttributes | None, received: Digested, digest: bytes
    ) -> ObjectInfo:
        if attributes is None:
            return await writer.finish(None, digest)
        kind = FULL_OBJECT if received.checksums else ""
        complete = msgspec.structs.replace(
            attributes, etag=received.etag(), checksums=received.checksums, checksum_type=kind
        )
        return await writer.finish(complete, digest)

    async def delete(self, request: web.Request, namespace: Namespace, raw_key: bytes) -> web.StreamResponse:
        """204 whether or not it was there, as S3 answers; durable when it does."""
        with contextlib.suppress(NoSuchBlock):
            await self._objects.delete(namespace, [block_key(namespace, raw_key)])
        return web.Response(status=204)


def _attributes(request: web.Request, namespace: Namespace, content_encoding: str) -> ObjectAttributes | None:
    """None in a KV namespace, whose blocks are bytes and nothing else. Raises BadRequest and MetadataTooLarge, before anything is
    received."""
    if namespace.spec.kind == "kv":
        return None
    attributes = put_attributes(request.headers, content_encoding)
    encode_attributes(attributes)
    return attributes


def _put_answer(info: ObjectInfo) -> web.Response:
    headers = {"ETag": f'"{info.etag}"'}
    if not info.data:
        headers[OWN_DIGEST] = info.block.checksum.hex()
    if info.attributes is not None:
        headers.update(checksum_headers(info.attributes))
    return web.Response(status=200, headers=headers)


def _range(request: web.Request, key: str, info: ObjectInfo) -> Span | None:
    if not range_counts(request.headers, info):
        return None
    return requested_span(request.headers.get("Range"), key, info.size)


def _part_span(
    headers: Mapping[str, str], query: Mapping[str, str], info: ObjectInfo, manifest: Manifest | None
) -> Span | None:
    """Of an object that was not uploaded in parts, part 1 is all of it."""
    text = query.get("partNumber")
    if text is None:
        return None
    if "Range" in headers:
        raise BadParameter("partNumber", text, "it can't be asked for together with a Range")
    number = query_number("partNumber", text, 1, PART_NUMBER_MAX)
    if info.attributes is None or not info.attributes.parts or manifest is None:
        if number == 1 and info.size:
            return Span(0, info.size)
        if number == 1:
            return None
    elif (span := manifest.part_span(number)) is not None:
        return Span(*span)
    raise OutOfBounds(key_of(info), info.size, info.size, info.size)


def key_of(info: ObjectInfo) -> str:
    return info.key.decode("utf-8", "replace")
