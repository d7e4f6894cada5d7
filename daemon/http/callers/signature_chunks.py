"""The signatures inside an aws-chunked body: each chunk's, and that of the trailers, in a chain that begins with the request's.

STREAMING-AWS4-HMAC-SHA256-PAYLOAD and -PAYLOAD-TRAILER. Whoever checked the request's own signature says here with which key
and from which signature the chain goes on. The framing itself: `chunked_body.py`.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web

from mooncask.daemon.http.bodies.chunked_body import ChunkEnd

_KEY = "mooncask.chunk_signing"
_EMPTY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True, repr=False)
class ChunkSigning:
    """What the signatures of a body are made with: the day's signing key, the request's time and scope, its signature."""

    key: bytes
    timestamp: str
    scope: str
    seed: str


def set_chunk_signing(request: web.Request, signing: ChunkSigning) -> None:
    """To be called by who checked the request's signature."""
    request[_KEY] = signing


def chunk_signing_of(request: web.Request) -> ChunkSigning | None:
    """None where nobody checks signatures: for anonymous callers, and on the Unix socket."""
    found: ChunkSigning | None = request.get(_KEY)
    return found


class ChunkSignatures:
    """Follows one body's chain. `valid` is False for good from the first signature that is wrong."""

    def __init__(self, signing: ChunkSigning) -> None:
        self.valid = True
        self._signing = signing
        self._previous = signing.seed
        self._hash = hashlib.sha256()

    def update(self, parts: list[memoryview | ChunkEnd]) -> None:
        """The body's next parts, in order: for a thread, it hashes every byte."""
        for part in parts:
            if isinstance(part, ChunkEnd):
                self._check("PAYLOAD", f"{_EMPTY}\n{self._hash.hexdigest()}", part.signature)
                self._hash = hashlib.sha256()
            else:
                self._hash.update(part)

    def check_trailers(self, trailers: Mapping[str, str], signature: str) -> None:
        """`trailers` without their signature, in the order in which they came."""
        lines = "".join(f"{name}:{value}\n" for name, value in trailers.items())
        self._check("TRAILER", hashlib.sha256(lines.encode("latin-1")).hexdigest(), signature)

    def _check(self, kind: str, hashes: str, signature: str) -> None:
        signing = self._signing
        text = f"AWS4-HMAC-SHA256-{kind}\n{signing.timestamp}\n{signing.scope}\n{self._previous}\n{hashes}"
        wanted = hmac.new(signing.key, text.encode(), hashlib.sha256).hexdigest()
        self.valid &= hmac.compare_digest(wanted, signature)
        self._previous = wanted
