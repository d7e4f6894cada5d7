"""`Expect: 100-continue`: a client that asks first sends its body when it is wanted, and not at all when it is refused.

Whoever reads the body says so, right before: by then somebody has looked at the request.
"""

from aiohttp import hdrs, web

from mooncask.daemon.http.refused import Refused

_ADMITTED = web.RequestKey("mooncask.admitted", bool)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def check_expectation(request: web.Request) -> None:
    """Raises Refused for what nobody knows to expect."""
    if request.headers.get(hdrs.EXPECT, "100-continue").strip().lower() != "100-continue":
        raise Refused(417, "InvalidRequest", "only 100-continue can be expected")


async def admit_body(request: web.Request) -> None:
    """To be awaited before a request's body is read; tells a client that waits for it to go on, once."""
    if hdrs.EXPECT not in request.headers or _ADMITTED in request:
        return
    request[_ADMITTED] = True
    await request.writer.write(_CONTINUE)
    request.writer.output_size = 0


def is_waiting(request: web.Request) -> bool:
    """Whether the client still waits to be told to send its body: what it does next on this connection nobody knows."""
    return hdrs.EXPECT in request.headers and _ADMITTED not in request
