"""A request for a JSON page, taken apart: which page, whose, which namespace and key, and the query's numbers. No I/O but the body."""

import re
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import unquote

import msgspec
from aiohttp import web

from mooncask.daemon.config import HttpSection
from mooncask.daemon.http.bodies.body import read_document
from mooncask.daemon.http.callers.caller import Caller, caller_of
from mooncask.daemon.http.refused import Refused
from mooncask.errors import AccessDenied, BadRequest

PREFIX = "/-/v1/"
BODY_BYTES_MAX = 16 << 20
"""A million token ids with their commas."""
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
_MOST = 1 << 30

Form = TypeVar("Form")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """GET /-/v1/<page>/<namespace>/<key>?<query>; what the path does not name is empty. A POST's key may end in an action."""

    request: web.Request
    method: str
    page: str
    namespace: str = ""
    key: str = ""
    query: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, request: web.Request) -> "PageRequest":
        """The parts of the path, percent-decoded once. Raises BadRequest for a path that is no UTF-8."""
        page, _, rest = request.rel_url.raw_path.removeprefix(PREFIX).partition("/")
        namespace, _, key = rest.partition("/")
        query = {name: value for name, value in request.query.items() if value}
        return cls(request, request.method, _decoded(page), _decoded(namespace), _decoded(key), query)

    @property
    def caller(self) -> Caller:
        return caller_of(self.request)

    def check_may_write(self) -> None:
        if not self.caller.may_write:
            raise AccessDenied(f"{self.caller.name} may read only")

    def number(self, name: str, default: float, least: float = 0, most: float = _MOST) -> float:
        """A number of the query. Raises BadRequest."""
        text = self.query.get(name)
        if text is None:
            return default
        if not _NUMBER.fullmatch(text) or not least <= float(text) <= most:
            raise BadRequest(f"{name} = {text[:40]}: a number from {least:g} to {most:g}")
        return float(text)

    def limit(self, default: int, most: int) -> int:
        """How many items are wanted; more than `most` are not given at a time."""
        return min(int(self.number("limit", default, 1)), most)

    async def form(self, kind: type[Form], limits: HttpSection) -> Form:
        """The JSON body, checked against what was signed of it. Raises BadRequest for one that is too long or says something
        else, DeadlineExceeded for one that comes too slowly."""
        try:
            data = await read_document(self.request, self.caller, BODY_BYTES_MAX, limits)
        except Refused as error:
            raise BadRequest(str(error)) from error
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError as error:
            raise BadRequest(f"the body must be a {kind.__name__} in JSON: {error}") from error


def _decoded(part: str) -> str:
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError as error:
        raise BadRequest("the path is not UTF-8") from error
