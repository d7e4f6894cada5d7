"""PUT, GET, HEAD and DELETE of one block. Bodies stream: into the reserved extent, and out of the leased one."""

import asyncio
import contextlib
import time
from email.utils import formatdate
from typing import NamedTuple

import numpy as np
from aiohttp import web

from mooncask.client.wire import CommitState
from mooncask.daemon.config import HttpSection
from mooncask.daemon.http.answers import Refused
from mooncask.daemon.http.body_digests import check_digests, unsupported_header, wanted_digests
from mooncask.daemon.http.outgoing import outgoing
from mooncask.daemon.http.range_request import Span, requested_span
from mooncask.daemon.http.s3_xml import etag
from mooncask.daemon.http.target import block_key, key_text, writable_key
from mooncask.daemon.service import Service, Writing
from mooncask.errors import BadRequest, BlockTooLarge, Busy, DeadlineExceeded, NoSuchBlock, NotEvictable
from mooncask.tiers.block import Extent, WriteMode
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.requests import BlockInfo, PutRequest

REQUEST_SECONDS = 30.0
"""For a load from below, a place to write, and a write to become durable: each."""
LOADS_MAX = 3
OBJECT_TYPE = "application/octet-stream"


class Held(NamedTuple):
    """A block in DRAM with one reference, and what is known of that very copy."""

    extent: Extent
    info: BlockInfo


class Objects:
    """The operations on objects, in the namespace that the router found."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def _config(self) -> HttpSection:
        """The one in force: a reload replaces it."""
        return self._service.config.http

    # --- out ---

    async def get(self, request: web.Request, namespace: Namespace, raw_key: bytes) -> web.StreamResponse:
        key = block_key(namespace, raw_key)
        held = await self._held(namespace, key)
        try:
            response, span = self._answer(request, namespace, held.info)
        except BaseException:
            self._service.store.drop(held.extent)
            raise
        if span is None:
            self._service.store.drop(held.extent)
            return response
        await self._send(request, response, held.extent, span)
        return response

    async def head(self, request: web.Request, namespace: Namespace, raw_key: bytes) -> web.StreamResponse:
        key = block_key(namespace, raw_key)
        info = self._service.store.info(namespace, key)
        if info is None:
            raise NoSuchBlock(namespace.spec.name, key_text(namespace, key))
        response, _ = self._answer(request, namespace, info)
        return response

    async def _held(self, namespace: Namespace, key: bytes) -> Held:
        """Raises NoSuchBlock and Busy. Extent and info are looked up together, so that they are of one copy."""
        deadline = time.monotonic() + REQUEST_SECONDS
        store = self._service.store
        for _ in range(LOADS_MAX):
            loaded = await store.fetch(namespace, key, deadline)
            (extent,) = store.hold(namespace, [key])
            info = store.info(namespace, key)
            if loaded is not None:
                store.drop(loaded)
            if extent is not None and info is not None:
                return Held(extent, info)
            if info is None:
                raise NoSuchBlock(namespace.spec.name, key_text(namespace, key))
        raise Busy(f"block {key_text(namespace, key)} did not come into DRAM", REQUEST_SECONDS)

    def _answer(
        self, request: web.Request, namespace: Namespace, info: BlockInfo
    ) -> tuple[web.StreamResponse, Span | None]:
        """The response without its body, and the bytes to send; None = no body. Raises OutOfBounds."""
        headers = {
            "ETag": etag(info.checksum),
            "Last-Modified": formatdate(info.created_seconds, usegmt=True),
            "Accept-Ranges": "bytes",
        }
        status = _precondition(request, headers["ETag"])
        if status != 200:
            return web.Response(status=status, headers=headers), None
        span = _span(request, namespace, info)
        whole = Span(0, info.size)
        response = web.StreamResponse(status=206 if span else 200, headers=headers)
        response.content_type = OBJECT_TYPE
        if span:
            response.headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{info.size}"
        body = span or whole
        response.content_length = body.stop - body.start
        return response, body

    async def _send(self, request: web.Request, response: web.StreamResponse, extent: Extent, span: Span) -> None:
        """Takes the reference over: it ends with the array, in every way that this can end."""
        size = span.stop - span.start
        if size == 0:
            self._service.store.drop(extent)
            await response.prepare(request)
            return
        seconds_max = self._config.grace + size / self._config.rate_min
        body = outgoing(self._service.store, extent, span.start, span.stop, seconds_max, lambda: _abort(request))
        try:
            await response.prepare(request)
            await response.write(body)
        except ConnectionError as error:
            # The reader went away. The error's traceback refers to the frames that hold the body, and they to the error:
            # without this only the garbage collector would give the block back.
            error.__traceback__ = None
            _abort(request)
        finally:
            del body

    # --- in ---

    async def put(self, request: web.Request, namespace: Namespace, raw_key: bytes) -> web.StreamResponse:
        key = writable_key(namespace, raw_key)
        size = self._checked_size(request)
        wanted = wanted_digests(request.headers)
        digest = _own_digest(request)
        deadline = time.monotonic() + REQUEST_SECONDS
        (writing,) = await self._service.reserve(namespace, [PutRequest(key, size)], deadline)
        state = CommitState.HAVE_IT
        if writing is not None:
            await self._fill(request, writing, size)
            try:
                body = self._service.store.view(writing.extent)[:size]
                await asyncio.to_thread(check_digests, key_text(namespace, key), body, wanted)
            except BaseException:
                self._service.abort(writing)
                raise
            state = await self._service.commit(writing, digest)
        if namespace.spec.mode is WriteMode.WRITE_THROUGH:
            await self._make_durable(namespace, key, published=state is CommitState.PUBLISHED)
        checksum = self._service.store.checksum(namespace, key) or b""
        return web.Response(status=200, headers={"ETag": etag(checksum)})

    async def _make_durable(self, namespace: Namespace, key: bytes, *, published: bool) -> None:
        """An object that finds no room on NVMe is not kept in DRAM either, where it could not be evicted."""
        try:
            await self._service.durable(namespace, key, time.monotonic() + REQUEST_SECONDS)
        except NotEvictable:
            if published:
                self._service.store.withdraw(namespace, key)
            raise

    def _checked_size(self, request: web.Request) -> int:
        refused = unsupported_header({name.lower(): value for name, value in request.headers.items()})
        if refused:
            raise Refused(501, "NotImplemented", f"this daemon does not take a PUT with {refused} yet")
        size = request.content_length
        if size is None:
            raise Refused(411, "MissingContentLength", "a PUT needs Content-Length")
        size_max = self._service.block_bytes_max
        if size > size_max:
            raise BlockTooLarge(size, size_max)
        return size

    async def _fill(self, request: web.Request, writing: Writing, size: int) -> None:
        """The body into the extent; the reservation is aborted when it does not come whole and in time."""
        target = np.frombuffer(self._service.store.view(writing.extent), np.uint8)
        seconds_max = self._config.grace + size / self._config.rate_min
        done = 0
        try:
            async with asyncio.timeout(seconds_max):
                async for piece in request.content.iter_any():
                    target[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
                    done += len(piece)
            if done != size:
                raise BadRequest(f"the body has {done} bytes, Content-Length said {size}")
        except TimeoutError as error:
            self._service.abort(writing)
            raise DeadlineExceeded(f"body of {size} bytes, {done} came (http.rate_min)", seconds_max) from error
        except BaseException:
            self._service.abort(writing)
            raise

    async def delete(self, request: web.Request, namespace: Namespace, raw_key: bytes) -> web.StreamResponse:
        """204 whether or not it was there, as S3 answers; durable when it does."""
        with contextlib.suppress(NoSuchBlock):
            await self._service.store.evict(namespace, [block_key(namespace, raw_key)])
        return web.Response(status=204)


def _span(request: web.Request, namespace: Namespace, info: BlockInfo) -> Span | None:
    header = request.headers.get("Range")
    if request.headers.get("If-Range", etag(info.checksum)) != etag(info.checksum):
        return None
    return requested_span(header, key_text(namespace, info.key), info.size)


def _precondition(request: web.Request, tag: str) -> int:
    """200, 304 or 412 by If-Match and If-None-Match (RFC 9110, 13.2.2)."""
    if_match = request.headers.get("If-Match")
    if if_match is not None and not _names(if_match, tag):
        return 412
    if_none_match = request.headers.get("If-None-Match")
    if if_none_match is not None and _names(if_none_match, tag):
        return 304
    return 200


def _names(header: str, tag: str) -> bool:
    return header.strip() == "*" or tag in {part.strip().removeprefix("W/") for part in header.split(",")}


def _own_digest(request: web.Request) -> bytes:
    text = request.headers.get("x-mooncask-xxh3-128", "")
    try:
        digest = bytes.fromhex(text)
    except ValueError as error:
        raise BadRequest("x-mooncask-xxh3-128 is not hex") from error
    if len(digest) not in (0, 16):
        raise BadRequest("x-mooncask-xxh3-128 is 32 hex digits")
    return digest


def _abort(request: web.Request) -> None:
    """The reader is too slow: without its transport nothing refers to the block any more."""
    if request.transport is not None:
        request.transport.abort()
