"""An object on its way out: piece by piece from the memory in which it lies, each in use until the transport lets go of it."""

import logging
from typing import TYPE_CHECKING

from aiohttp import web

from mooncask.daemon.config import HttpSection
from mooncask.daemon.http.answers import sign
from mooncask.daemon.http.outgoing import outgoing
from mooncask.daemon.objects.reader import ObjectReader, Piece, Pieces
from mooncask.errors import MooncaskError
from mooncask.tiers.store import Store

if TYPE_CHECKING:
    from mooncask.daemon.http.s3.range_request import Span

log = logging.getLogger(__name__)


async def send(
    request: web.Request,
    response: web.StreamResponse,
    store: Store,
    reader: ObjectReader,
    span: "Span",
    config: HttpSection,
) -> None:
    """Bytes [start, stop) of the object as the response's body. Raises what the first piece raises; what goes wrong later can
    only cut the connection, since the answer has begun."""
    pieces = reader.pieces(span.start, span.stop)
    piece = await anext(pieces, None)
    try:
        sign(request, response)
        await response.prepare(request)
        while piece is not None:
            taken, piece = piece, None
            await _write(request, response, store, taken, config)
            piece = await _next(request, pieces)
    except ConnectionError as error:
        # The reader went away. The error's traceback refers to frames that hold the body, and they to the error: without this
        # only the garbage collector would give the block back.
        error.__traceback__ = None
        cut(request)
    finally:
        if piece is not None:
            store.drop(piece.extent)


async def _next(request: web.Request, pieces: Pieces) -> Piece | None:
    try:
        return await anext(pieces, None)
    except MooncaskError as error:
        log.warning("%s %s broke off: %s", request.method, request.path[:200], error.message)
        cut(request)
        raise ConnectionResetError from None


async def _write(
    request: web.Request, response: web.StreamResponse, store: Store, piece: Piece, config: HttpSection
) -> None:
    """Takes the piece's reference over: it ends with the array, in every way that this can end."""
    seconds_max = config.grace + (piece.stop - piece.start) / config.rate_min
    body = outgoing(store, piece.extent, piece.start, piece.stop, seconds_max, lambda: cut(request))
    try:
        await response.write(body)
    finally:
        del body


def cut(request: web.Request) -> None:
    """Without its transport nothing refers to what was to be sent any more."""
    if request.transport is not None:
        request.transport.abort()
