"""Who calls over the Unix socket: the kernel names the peer's uid, its tenant follows from the configuration."""

import socket
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from mooncask.daemon.http.caller import Caller, set_caller
from mooncask.daemon.peer import uid_of


def is_local(request: web.Request) -> bool:
    """Whether the request came over the Unix socket: such a caller is known, and needs no signature."""
    found = request.transport.get_extra_info("socket") if request.transport is not None else None
    return found is not None and found.family == socket.AF_UNIX


def local_callers(tenant_of: Callable[[int], str]) -> Middleware:
    """A middleware that sets the caller of local requests, by `tenant_of(uid)`, and leaves the others alone."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if is_local(request):
            assert request.transport is not None
            uid = uid_of(request.transport.get_extra_info("socket"))
            set_caller(request, Caller(tenant_of(uid), f"uid {uid}"))
        return await handler(request)

    return middleware
