"""Which page under /-/ a request asks for, and whom it is shown to. No bucket can be called "-"; a bucket's own host has no pages.

What each page says is the business of the modules that list their routes here.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from aiohttp import web

READ = frozenset({"GET", "HEAD"})
_MAYBE = ("/-", "/%")
"""How a path begins that may be "/-/", however it is written."""


class Access(Enum):
    """Who sees a page over TCP. Who calls over the Unix socket is known, and sees all of them."""

    OPEN = auto()
    SCRAPED = auto()
    """Open to programs of this machine; others need `http.admin_token`, since it shows namespaces of all tenants."""
    GUARDED = auto()
    """Signed requests, or `http.admin_token`, where there are such."""


@dataclass(frozen=True, slots=True)
class PageRoute:
    """`path` is a regular expression for the whole path, decoded once; no `methods`: all."""

    path: str
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]]
    access: Access = Access.GUARDED
    methods: frozenset[str] = READ
    pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pattern", re.compile(self.path))


class PageRoutes:
    """The first route that fits is taken."""

    def __init__(self, routes: Iterable[PageRoute]) -> None:
        self._routes = list(routes)

    def find(self, request: web.Request) -> PageRoute | None:
        """None: the request is S3's."""
        raw = request.raw_path
        if raw.startswith("/") and not raw.startswith(_MAYBE):
            return None
        path = request.rel_url.path_safe
        for route in self._routes if path.startswith("/-") else ():
            if (not route.methods or request.method in route.methods) and route.pattern.fullmatch(path):
                return route
        return None
