"""On whose behalf a request is made: decided once, by who checks it, and asked by every operation."""

from dataclasses import dataclass

from aiohttp import web

from mooncask.daemon.namespace_door import DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class Caller:
    """A tenant and what may be done in its name. `name` is what logs call the caller: an access key id, never a secret."""

    tenant: str
    name: str
    may_write: bool = True


ANONYMOUS = Caller(DEFAULT_TENANT, "anonymous")
_KEY = web.RequestKey("mooncask.caller", Caller)


def set_caller(request: web.Request, caller: Caller) -> None:
    """To be called before the request's operation runs."""
    request[_KEY] = caller


def caller_of(request: web.Request) -> Caller:
    """Who asks; anonymous where nobody has checked, which the daemon allows on loopback without credentials only."""
    found: Caller = request.get(_KEY, ANONYMOUS)
    return found
