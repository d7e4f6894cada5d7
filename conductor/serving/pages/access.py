"""Who sees the pages: with an admin token who knows it; without one programs of this machine, asked for by a loopback name.

A browser on this machine that shows somebody else's page is no such program: a foreign `Origin` or `Host` is refused, and so
is what a proxy passed on. Pure.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from mooncask.client.bearer import bears
from mooncask.conductor.serving.config import is_loopback
from mooncask.errors import AccessDenied

FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP")


@dataclass(frozen=True, slots=True)
class PageAccess:
    """`token` empty: none is asked for."""

    token: str

    def check(self, remote: str, headers: Mapping[str, str]) -> None:
        """Raises AccessDenied."""
        if self.token:
            if not bears(headers.get("Authorization", ""), self.token):
                raise AccessDenied('the pages under /-/ need the admin token: send it as "Authorization: Bearer TOKEN"')
            return
        if not _is_loopback_address(remote) or any(name in headers for name in FORWARDED):
            raise AccessDenied(
                "the pages under /-/ are shown to this machine only; set admin.token to see them from others"
            )
        if not is_loopback(_name(headers.get("Host", ""))):
            raise AccessDenied("the pages under /-/ are asked for by the name localhost or by 127.0.0.1")
        origin = headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != headers.get("Host", ""):
            raise AccessDenied("another site's page may not ask for the pages under /-/")


def _is_loopback_address(remote: str) -> bool:
    try:
        return ipaddress.ip_address(remote).is_loopback
    except ValueError:
        return False


def _name(host: str) -> str:
    """Of NAME, NAME:PORT or [ADDRESS]:PORT."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
