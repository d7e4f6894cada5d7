"""Which requests a browser makes because a foreign page told it to. Pure.

Where nobody needs a key, every program of this machine may ask, and a browser is one: a page from anywhere can make it send
requests to 127.0.0.1, and by a host name of its own that resolves to 127.0.0.1 it could even read the answers.
"""

import ipaddress
from collections.abc import Mapping
from functools import lru_cache

_OWN_SITE = frozenset({"", "same-origin", "none"})


def is_from_foreign_page(headers: Mapping[str, str], domain: str) -> bool:
    """`headers` take names in any case; `domain` is http.domain. False for whatever is no browser and names no foreign host."""
    return headers.get("sec-fetch-site", "") not in _OWN_SITE or not _is_own_host(headers.get("host", ""), domain)


@lru_cache(256)
def _is_own_host(host: str, domain: str) -> bool:
    """Whether a page of this name can only be this machine's: an address, a name without dots, or one that is configured."""
    if host.startswith("["):
        return True
    name = host.partition(":")[0].lower()
    if "." not in name or name.endswith(".localhost") or (domain and f".{name}".endswith(f".{domain}")):
        return True
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return False
    return True
