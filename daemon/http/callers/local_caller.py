"""Who calls over the Unix socket: the kernel names the peer's uid, its tenant follows from the configuration."""

import socket
from collections.abc import Callable

from aiohttp import web

from mooncask.daemon.http.callers.caller import Caller
from mooncask.daemon.peer import uid_of


def local_caller(request: web.Request, tenant_of: Callable[[int], str]) -> Caller | None:
    """Who calls over the Unix socket, by `tenant_of(uid)`; such a caller needs no signature. None: the request came over TCP."""
    if isinstance(request.protocol.peername, tuple):
        return None  # an address and a port; kept by aiohttp for the connection, unlike the socket
    found = request.transport.get_extra_info("socket") if request.transport is not None else None
    if found is None or found.family != socket.AF_UNIX:
        return None
    uid = uid_of(found)
    return Caller(tenant_of(uid), f"uid {uid}")
