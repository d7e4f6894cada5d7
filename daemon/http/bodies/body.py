"""The body of a request, decoded and checked: what an operation reads instead of aiohttp's stream.

    body = open_body(request, caller)           # refuses what cannot be read or checked
    digests = RunningDigests(body.wanted | own)
    async for piece in body: ...                # decoded bytes; raises when they are not those that were announced
    await body.verify(await digests.finish())   # raises when they are not those that were meant

Only what `verify` has let pass may be published. Where the bytes go, how fast they must come and which other digests are kept
with the object are the operation's affairs.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict

from mooncask.daemon.config import HttpSection
from mooncask.daemon.http.bodies.body_promises import (
    CHECKSUM,
    CONTENT_SHA256,
    STREAMING,
    Promise,
    base64_text,
    check_promises,
    promised_trailers,
    promises_of,
    trailer_promises,
)
from mooncask.daemon.http.bodies.chunked_body import (
    TRAILER_SIGNATURE,
    BadFraming,
    ChunkedDecoder,
    ShortBody,
)
from mooncask.daemon.http.bodies.ordered_work import OrderedWork
from mooncask.daemon.http.bodies.running_digests import RunningDigests, missing_digests
from mooncask.daemon.http.callers.caller import Caller
from mooncask.daemon.http.callers.signature_chunks import ChunkSignatures, ChunkSigning, chunk_signing_of
from mooncask.daemon.http.expectation import admit_body
from mooncask.daemon.http.refused import Refused
from mooncask.errors import DeadlineExceeded

CODING = "aws-chunked"
_SIGNED = f"{STREAMING}AWS4-HMAC-SHA256-PAYLOAD"
_TRAILER = "-TRAILER"
_FRAMINGS = frozenset({f"{STREAMING}UNSIGNED-PAYLOAD{_TRAILER}", _SIGNED, _SIGNED + _TRAILER})
_SIZE_DIGITS_MAX = 18
_QUERY_SHA256 = "X-Amz-Content-Sha256"


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """What the headers say of the body. `signed` is said of each chunk of a `framed` body, and of its trailers."""

    size_bytes: int
    content_encoding: str
    framed: bool = False
    signed: bool = False
    promises: list[Promise] = field(default_factory=list)
    trailers: dict[str, str] = field(default_factory=dict)


def body_plan(headers: Mapping[str, str], content_length: int | None) -> BodyPlan:
    """Pure; `headers` take names in any case. Raises Refused."""
    missing = missing_digests()
    codings = [part.strip() for part in headers.get("content-encoding", "").split(",")]
    kind = headers.get(CONTENT_SHA256, "")
    framed = kind.startswith(STREAMING) or CODING in codings
    if kind.startswith(STREAMING) and kind not in _FRAMINGS:
        raise Refused(501, "NotImplemented", f"{CONTENT_SHA256}: {kind[:100]} is no framing that this daemon knows")
    promises = promises_of(headers, missing)
    if framed and any(promise.header == CONTENT_SHA256 for promise in promises):
        raise Refused(400, "InvalidRequest", f"an {CODING} body is not signed as a whole: {CONTENT_SHA256} says it is")
    trailers = promised_trailers(headers, missing)
    if trailers and not (framed and kind in ("", *_FRAMINGS - {_SIGNED})):
        raise Refused(400, "InvalidRequest", f"x-amz-trailer needs {CONTENT_SHA256}: STREAMING-...-TRAILER")
    return BodyPlan(
        size_bytes=_size(headers, None if framed else content_length),
        content_encoding=", ".join(part for part in codings if part not in ("", CODING)),
        framed=framed,
        signed=kind.startswith(_SIGNED),
        promises=promises,
        trailers=trailers,
    )


class IncomingBody:
    """One request's body; to be read once, by one task.

    `size` is its decoded length in bytes. `wanted` are the digests that `verify` needs. `content_encoding` is the object's own
    (without aws-chunked; empty: none). `checksums` are filled by `verify`: "crc32" and so on -> base64, as S3 keeps them.
    """

    def __init__(self, plan: BodyPlan, source: AsyncIterator[bytes], signing: ChunkSigning | None = None) -> None:
        self.size = plan.size_bytes
        self.content_encoding = plan.content_encoding
        self.checksums: dict[str, str] = {}
        self.wanted = frozenset(promise.name for promise in plan.promises) | frozenset(plan.trailers.values())
        self._plan = plan
        self._source = source
        self._signatures = ChunkSignatures(signing) if plan.signed and signing is not None else None
        self._promises: list[Promise] | None = None

    async def __aiter__(self) -> AsyncIterator[memoryview]:
        """Raises Refused (IncompleteBody, InvalidRequest, SignatureDoesNotMatch), at the latest after the last piece."""
        came = 0
        async for piece in self._framed() if self._plan.framed else self._plain():
            came += len(piece)
            if came > self.size:
                raise Refused(
                    400, "InvalidRequest", f"the body has more than the {self.size} bytes that were announced"
                )
            yield piece
        if came != self.size:
            raise _incomplete(f"{came} of {self.size} bytes came")

    async def verify(self, digests: Mapping[str, bytes]) -> None:
        """Takes at least the digests that are `wanted`, of all that was read. Raises Refused: nothing may be published."""
        assert self._promises is not None, "the body was not read to its end"
        check_promises(self._promises, digests)
        self.checksums = {
            promise.name: base64_text(promise.digest)
            for promise in self._promises
            if promise.header.startswith(CHECKSUM)
        }

    async def _plain(self) -> AsyncIterator[memoryview]:
        async for data in self._source:
            yield memoryview(data)
        self._promises = self._plan.promises

    async def _framed(self) -> AsyncIterator[memoryview]:
        decoder = ChunkedDecoder(self.size)
        checks = OrderedWork(self._signatures.update) if self._signatures is not None else None
        try:
            async for data in self._source:
                for part in decoder.feed(data):
                    if checks is not None:
                        checks.add(part, len(part) if isinstance(part, memoryview) else 0)
                    if isinstance(part, memoryview):
                        yield part
                if checks is not None:
                    await checks.room()
                    self._refuse_wrong_signature()
            trailers = decoder.finish()
        except BadFraming as error:
            raise Refused(400, "InvalidRequest", f"malformed {CODING} body: {error}") from error
        except ShortBody as error:
            raise _incomplete(str(error)) from error
        if checks is not None:
            await checks.finish()
        self._take_trailers(trailers)

    def _take_trailers(self, trailers: dict[str, str]) -> None:
        signature = trailers.pop(TRAILER_SIGNATURE, "")
        if self._signatures is not None and (self._plan.trailers or trailers or signature):
            self._signatures.check_trailers(trailers, signature)
        self._refuse_wrong_signature()
        self._promises = self._plan.promises + trailer_promises(trailers, self._plan.trailers)

    def _refuse_wrong_signature(self) -> None:
        if self._signatures is not None and not self._signatures.valid:
            raise Refused(403, "SignatureDoesNotMatch", "a chunk's signature does not match; nothing was stored")


def open_body(request: web.Request, caller: Caller) -> IncomingBody:
    """The body as its headers announce it; nothing of it is read yet. Raises Refused."""
    del caller  # who signed the chunks was settled with the request's own signature
    plan = body_plan(_headers(request), request.content_length)
    return IncomingBody(plan, _received(request), chunk_signing_of(request))


async def read_document(
    request: web.Request, caller: Caller, bytes_max: int, limits: HttpSection, *, checksums_of_object: bool = False
) -> bytes:
    """A whole body of at most `bytes_max` bytes, checked: the XML that some operations take. Raises Refused, and DeadlineExceeded
    for one that comes too slowly: requests under way are counted, and whoever holds one must get on with it.

    `checksums_of_object`: x-amz-checksum-* headers say something of the object that the document is about, not of the document.
    """
    if request.content_length is None and not request.can_read_body:
        return b""
    if checksums_of_object:
        own = {name: value for name, value in _headers(request).items() if not name.lower().startswith(CHECKSUM)}
        plan = body_plan(CIMultiDict(own), request.content_length)
        body = IncomingBody(plan, _received(request), chunk_signing_of(request))
    else:
        body = open_body(request, caller)
    if body.size > bytes_max:
        raise Refused(
            400, "MaxMessageLengthExceeded", f"a body of {body.size} bytes; at most {bytes_max} are read here"
        )
    seconds = limits.grace + body.size / limits.rate_min
    try:
        async with asyncio.timeout(seconds):
            found = b"".join([bytes(piece) async for piece in body])
    except TimeoutError as error:
        raise DeadlineExceeded(f"body of {body.size} bytes (http.rate_min)", seconds) from error
    digests = RunningDigests(body.wanted)
    await digests.feed(memoryview(found))
    await body.verify(await digests.finish())
    return found


async def _received(request: web.Request) -> AsyncIterator[bytes]:
    """The body's bytes as they come in, without HTTP's own framing; piece by piece, since joining them would copy."""
    await admit_body(request)
    try:
        while True:
            data, chunk_ended = await request.content.readchunk()
            if data:
                yield data
            elif not chunk_ended or request.content.at_eof():
                return  # an empty body says "a chunk has ended" for ever
    except (ClientError, HttpProcessingError) as error:
        raise _incomplete("the connection ended before the body did") from error


def _headers(request: web.Request) -> Mapping[str, str]:
    """A presigned query may say how the body is signed, in the place of the header."""
    headers = request.headers
    if _QUERY_SHA256 in request.query and CONTENT_SHA256 not in headers:
        return CIMultiDict([*headers.items(), (CONTENT_SHA256, request.query[_QUERY_SHA256])])
    return headers


def _size(headers: Mapping[str, str], content_length: int | None) -> int:
    text = headers.get("x-amz-decoded-content-length", "")
    if content_length is not None:
        return content_length
    if not text:
        raise Refused(411, "MissingContentLength", "a body needs Content-Length, or x-amz-decoded-content-length")
    if not text.isascii() or not text.isdigit() or len(text) > _SIZE_DIGITS_MAX:
        raise Refused(400, "InvalidArgument", "x-amz-decoded-content-length is no number of bytes")
    return int(text)


def _incomplete(what: str) -> Refused:
    return Refused(400, "IncompleteBody", f"the body is not complete: {what}; nothing was stored")
