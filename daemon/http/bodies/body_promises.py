"""Which digests the headers of a PUT promise, and whether the body has them. Pure; computing them is `running_digests.py`.

Content-MD5, x-amz-checksum-* (as a header, or promised by x-amz-trailer and sent behind the body) and a signed
x-amz-content-sha256. What a client asks to be checked is checked, or refused by name.
"""

import base64
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mooncask.daemon.http.bodies.running_digests import DIGESTS
from mooncask.daemon.http.refused import Refused

CHECKSUM = "x-amz-checksum-"
CONTENT_SHA256 = "x-amz-content-sha256"
UNSIGNED = "UNSIGNED-PAYLOAD"
STREAMING = "STREAMING-"
_ALGORITHM = "x-amz-sdk-checksum-algorithm"
_NO_CHECKSUM = frozenset({"algorithm", "mode", "type"})
"""x-amz-checksum-<this> says something about checksums and is none."""
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Promise:
    """What a body's digest must be. `header` is where the client said so."""

    header: str
    name: str
    digest: bytes


def promises_of(headers: Mapping[str, str], missing: frozenset[str] = frozenset()) -> list[Promise]:
    """What is promised before the body comes; `headers` take names in any case. Raises Refused: for what is malformed, and
    for a digest that this daemon does not know or, when it is one of `missing`, cannot compute."""
    found = [_checksum(name.lower(), value, missing) for name, value in headers.items() if _is_checksum(name)]
    if len(found) > 1:
        raise Refused(400, "InvalidRequest", "expecting a single x-amz-checksum- header")
    if "content-md5" in headers:
        found.append(Promise("content-md5", "md5", _md5(headers["content-md5"])))
    signed = headers.get(CONTENT_SHA256, UNSIGNED)
    if _SHA256.fullmatch(signed):
        found.append(Promise(CONTENT_SHA256, "sha256", bytes.fromhex(signed)))
    elif signed != UNSIGNED and not signed.startswith(STREAMING):
        text = f"{CONTENT_SHA256} must be {UNSIGNED}, {STREAMING}... or the body's SHA-256 in hex"
        raise Refused(400, "InvalidArgument", text)
    return found


def promised_trailers(headers: Mapping[str, str], missing: frozenset[str] = frozenset()) -> dict[str, str]:
    """Trailer -> name of its digest, for each one that x-amz-trailer announces. Raises Refused."""
    names = [part.strip().lower() for part in headers.get("x-amz-trailer", "").split(",")]
    found = {name: _known(name, missing) for name in names if name}
    if len(found) > 1 or (found and any(_is_checksum(name) for name in headers)):
        raise Refused(400, "InvalidRequest", "expecting a single checksum, as a header or as a trailer")
    if _ALGORITHM in headers and not found and not any(_is_checksum(name) for name in headers):
        text = f"{_ALGORITHM} is given, but neither an x-amz-checksum- header nor x-amz-trailer"
        raise Refused(400, "InvalidRequest", text)
    return found


def trailer_promises(trailers: Mapping[str, str], promised: Mapping[str, str]) -> list[Promise]:
    """What came behind the body, which must be what was promised. Raises Refused."""
    if trailers.keys() != promised.keys():
        said, came = ", ".join(sorted(promised)) or "none", ", ".join(sorted(trailers))[:200] or "none"
        raise Refused(400, "MalformedTrailerError", f"x-amz-trailer promised {said}; trailers that came: {came}")
    return [_checksum(name, value, frozenset()) for name, value in trailers.items()]


def check_promises(promises: Iterable[Promise], digests: Mapping[str, bytes]) -> None:
    """Raises Refused with BadDigest or XAmzContentSHA256Mismatch."""
    for promise in promises:
        found = digests[promise.name]
        if hmac.compare_digest(found, promise.digest):
            continue
        code = "XAmzContentSHA256Mismatch" if promise.header == CONTENT_SHA256 else "BadDigest"
        text = (
            f"{promise.header} is {promise.digest.hex()}, the body's {promise.name} {found.hex()}; nothing was stored"
        )
        raise Refused(400, code, text)


def base64_text(digest: bytes) -> str:
    """How S3 writes a checksum."""
    return base64.b64encode(digest).decode()


def _is_checksum(header: str) -> bool:
    name = header.lower()
    return name.startswith(CHECKSUM) and name.removeprefix(CHECKSUM) not in _NO_CHECKSUM


def _known(header: str, missing: frozenset[str]) -> str:
    name = header.removeprefix(CHECKSUM)
    if name == header or name == "md5" or name not in DIGESTS:
        raise Refused(501, "NotImplemented", f"{header[:100]} is no checksum that this daemon knows")
    if name in missing:
        raise Refused(501, "NotImplemented", f'{header} cannot be checked here: install "mooncask[s3]" for it')
    return name


def _checksum(header: str, value: str, missing: frozenset[str]) -> Promise:
    name = _known(header, missing)
    digest = _base64(value)
    if len(digest) != DIGESTS[name]:
        raise Refused(400, "InvalidRequest", f"value for {header} header is invalid")
    return Promise(header, name, digest)


def _md5(value: str) -> bytes:
    digest = _base64(value)
    if len(digest) != DIGESTS["md5"]:
        raise Refused(400, "InvalidDigest", "Content-MD5 is not an MD5 in base64")
    return digest


def _base64(value: str) -> bytes:
    """Empty for what is not base64."""
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        return b""
