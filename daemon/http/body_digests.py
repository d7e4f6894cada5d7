"""Checksums that an S3 client sends along with a body: what it asks to be checked is checked, or refused by name."""

import base64
import hashlib
import zlib
from collections.abc import Callable, Mapping

from mooncask.errors import BadRequest, DigestMismatch

Digest = Callable[[memoryview], bytes]

_DIGESTS: dict[str, Digest] = {
    "content-md5": lambda body: hashlib.md5(body, usedforsecurity=False).digest(),
    "x-amz-checksum-crc32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
    "x-amz-checksum-sha1": lambda body: hashlib.sha1(body, usedforsecurity=False).digest(),
    "x-amz-checksum-sha256": lambda body: hashlib.sha256(body).digest(),
}
_UNKNOWN = ("x-amz-checksum-crc32c", "x-amz-checksum-crc64nvme")


def unsupported_header(headers: Mapping[str, str]) -> str:
    """A header that asks for what this API can't do; empty when there is none."""
    if "aws-chunked" in headers.get("content-encoding", ""):
        return "Content-Encoding: aws-chunked"
    if headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
        return "x-amz-content-sha256: STREAMING-..."
    wanted = (*_UNKNOWN, "x-amz-trailer", "x-amz-copy-source", "if-none-match", "if-match")
    return next((name for name in wanted if name in headers), "")


def wanted_digests(headers: Mapping[str, str]) -> dict[str, bytes]:
    """Header name -> digest that the body must have. Raises BadRequest for what is not base64."""
    found = {}
    for name in _DIGESTS:
        if name in headers:
            try:
                found[name] = base64.b64decode(headers[name], validate=True)
            except ValueError as error:
                raise BadRequest(f"{name} is not base64") from error
    return found


def check_digests(key: str, body: memoryview, wanted: Mapping[str, bytes]) -> None:
    """Raises DigestMismatch. Blocks for as long as it takes to read the body: for a thread."""
    for name, digest in wanted.items():
        found = _DIGESTS[name](body)
        if found != digest:
            raise DigestMismatch(key, f"{name} {digest.hex()}", found.hex())
