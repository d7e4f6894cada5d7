"""What HTTP requests cost, told to insight when they have been answered: time by operation, bytes of bodies in and out.

A body's bytes are those that its Content-Length says. A download that breaks off counts as a whole one: the answer has begun.
"""

from aiohttp import hdrs, web

from mooncask.daemon.insight.insight import Insight
from mooncask.tiers.flows import Way

OPERATION = web.RequestKey("mooncask.operation", str)
"""S3's name of what a request is, set by who finds that out."""
PAGE = "Page"
REFUSED = "Refused"
HTTP_IN = Way("http_in", "")
HTTP_OUT = Way("http_out", "")
_BODILESS = frozenset({hdrs.METH_HEAD, hdrs.METH_DELETE})


class Measuring:
    """Called once a request."""

    def __init__(self, insight: Insight) -> None:
        self._latencies = insight.latencies
        self._flows = insight.http

    def answered(self, request: web.Request, response: web.StreamResponse, seconds: float) -> None:
        """`seconds` from the request's headers until its handler is done; the last bytes may still be on their way."""
        operation: str = request.get(OPERATION, "")
        if not operation:
            operation = PAGE if request.path.startswith("/-/") else REFUSED
        self._latencies.answered_http(operation, seconds)
        if response.status >= 300 or operation == PAGE:
            return
        if came := request.content_length:
            self._flows.add(HTTP_IN, came)
        if request.method not in _BODILESS and (went := response.content_length):
            self._flows.add(HTTP_OUT, went)
