"""Who asks: a signature is checked before anything else of a request is looked at, and names the caller.

Over TCP. Without credentials in the configuration everybody on loopback is the anonymous caller; with them S3 takes signed
requests only, and the pages under /-/ signed ones or `http.admin_token`. Callers on the Unix socket are known by the kernel
(`local_caller.py`). What a caller may do: the operations ask `caller.py`.
"""

import hmac
import ipaddress
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from aiohttp import hdrs, web

from mooncask.daemon.config import Config
from mooncask.daemon.http.browsers import is_from_foreign_page
from mooncask.daemon.http.callers.caller import ANONYMOUS, Caller
from mooncask.daemon.http.callers.credentials import Credential, load_credentials
from mooncask.daemon.http.callers.signature import (
    Claim,
    RequestHead,
    Scope,
    claim_of,
    signature,
    signing_key,
    strings_to_sign,
)
from mooncask.daemon.http.callers.signature_chunks import ChunkSigning, set_chunk_signing
from mooncask.daemon.http.pages.routes import Access
from mooncask.daemon.http.refused import Refused
from mooncask.daemon.namespace_door import DEFAULT_TENANT

SKEW_SECONDS_MAX = 900
KEYS_MAX = 256
"""Signing keys that are kept: one a key, day and region."""
ADMIN = Caller(DEFAULT_TENANT, "admin token")


class SigningKeys:
    """Keys derived from secrets, the last KEYS_MAX of them: deriving one takes four HMACs."""

    def __init__(self) -> None:
        self._keys: OrderedDict[tuple[str, Scope], bytes] = OrderedDict()

    def get(self, name: str, secret: str, scope: Scope) -> bytes:
        key = self._keys.get((name, scope))
        if key is None:
            key = self._keys[(name, scope)] = signing_key(secret, scope)
            if len(self._keys) > KEYS_MAX:
                self._keys.popitem(last=False)
        else:
            self._keys.move_to_end((name, scope))
        return key


class SignatureCheck:
    """Which key signed a request. Holds the secrets; shows none."""

    def __init__(self, credentials: Mapping[str, Credential], region: str, now: Callable[[], float]) -> None:
        """`region` is the one that signatures must name; empty: any. `now` gives wall-clock seconds."""
        self._credentials = credentials
        self._region = region
        self._now = now
        self._keys = SigningKeys()
        # An access key id that does not exist is checked as well, with this: it shall take as long as a wrong signature.
        self._nobody = Credential(secrets.token_hex(20), Caller("", ""))

    def check(self, head: RequestHead, claim: Claim) -> tuple[Credential, ChunkSigning]:
        """Raises Refused with S3's codes."""
        self._check_region(claim)
        self._check_time(claim)
        known = self._credentials.get(claim.access_key)
        credential = known or self._nobody
        key = self._keys.get(claim.access_key if known else "", credential.secret, claim.scope)
        right = any(hmac.compare_digest(signature(key, text), claim.signature) for text in strings_to_sign(head, claim))
        if known is None:
            raise Refused(403, "InvalidAccessKeyId", "this daemon knows no such access key id")
        if not right:
            raise Refused(
                403, "SignatureDoesNotMatch", "the signature is not that of this request by this key's secret"
            )
        return known, ChunkSigning(key, claim.timestamp, str(claim.scope), claim.signature)

    def _check_region(self, claim: Claim) -> None:
        if self._region and claim.scope.region != self._region:
            presigned = claim.lifetime_seconds is not None
            code = "AuthorizationQueryParametersError" if presigned else "AuthorizationHeaderMalformed"
            text = f'the region "{claim.scope.region}" is wrong; expecting "{self._region}" (s3.region)'
            raise Refused(400, code, text, {"Region": self._region})

    def _check_time(self, claim: Claim) -> None:
        now, made = self._now(), claim.made_seconds
        if claim.lifetime_seconds is None:
            if abs(now - made) > SKEW_SECONDS_MAX:
                raise _skewed(claim.timestamp, now)
        elif made > now + SKEW_SECONDS_MAX:
            raise Refused(403, "AccessDenied", "Request is not valid yet", {"ServerTime": _written(now)})
        elif now > made + claim.lifetime_seconds:
            details = {"Expires": _written(made + claim.lifetime_seconds), "ServerTime": _written(now)}
            raise Refused(403, "AccessDenied", "Request has expired", details)


class Authentication:
    """Says who the caller of a request over TCP is, or refuses it."""

    def __init__(self, config: Config, now: Callable[[], float]) -> None:
        """`now` gives wall-clock seconds. Reads files; raises ConfigError."""
        self._now = now
        self.reconfigure(config, load_credentials(config))

    def reconfigure(self, config: Config, credentials: Mapping[str, Credential]) -> None:
        """In force from the next request on; cannot fail."""
        self._signatures = SignatureCheck(credentials, config.s3.region, self._now) if credentials else None
        self._domain = config.http.domain
        self._admin_token = config.http.admin_token.encode()

    def caller(self, request: web.Request, page: Access | None) -> Caller:
        """`page` says whom a page under /-/ is shown to; None: the request is S3's. Raises Refused."""
        if page is not None and (found := self._of_page(request, page)) is not None:
            return found
        if self._signatures is None:
            return self._anonymous(request)
        head = RequestHead(request.method, _target(request), request.headers)
        claim = claim_of(head)
        if claim is None:
            raise _denied(
                "this page needs a signature or http.admin_token" if page is not None else "this request is not signed"
            )
        credential, signing = self._signatures.check(head, claim)
        set_chunk_signing(request, signing)
        return credential.caller

    def _of_page(self, request: web.Request, page: Access) -> Caller | None:
        """None: a page that is shown to those only who may use S3."""
        if page is Access.OPEN:
            return ANONYMOUS
        if page is Access.SCRAPED and _from_loopback(request):
            return self._anonymous(request)
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        if scheme.lower() == "bearer":
            return self._admin(token.strip())
        if page is Access.SCRAPED or (self._signatures is None and self._admin_token):
            raise _denied("this page needs http.admin_token")
        return None

    def _anonymous(self, request: web.Request) -> Caller:
        if is_from_foreign_page(request.headers, self._domain):
            text = (
                "a browser sends this for another site's page; a host name of this daemon's own is set by http.domain"
            )
            raise _denied(text)
        return ANONYMOUS

    def _admin(self, token: str) -> Caller:
        given = token.encode("utf-8", "surrogateescape")
        if not self._admin_token or not hmac.compare_digest(given, self._admin_token):
            raise _denied("this is not http.admin_token")
        return ADMIN


def _skewed(timestamp: str, now: float) -> Refused:
    text = "the difference between the request time and this daemon's clock is too large"
    details = {
        "RequestTime": timestamp,
        "ServerTime": _written(now),
        "MaxAllowedSkewMilliseconds": str(SKEW_SECONDS_MAX * 1000),
    }
    return Refused(403, "RequestTimeTooSkewed", text, details)


def _denied(why: str) -> Refused:
    return Refused(403, "AccessDenied", why)


def _from_loopback(request: web.Request) -> bool:
    try:
        return ipaddress.ip_address(request.remote or "").is_loopback
    except ValueError:
        return False


def _target(request: web.Request) -> str:
    """The request line's target, without what a client that takes this for a proxy puts before the path."""
    target = request.raw_path
    if target.startswith("/"):
        return target
    _, _, rest = target.partition("://")
    return "/" + rest.partition("/")[2]


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
