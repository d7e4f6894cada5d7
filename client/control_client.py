"""The daemon's JSON pages for programs of the same machine: typed answers, over the Unix socket beside the daemon's own.

What the answers mean is written in `control.py`; payload goes through the local clients, not through here.
"""

import http.client
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

import msgspec

from mooncask.client import control
from mooncask.client.hold import Holding, HoldRequest
from mooncask.client.socket_path import default_socket_path, http_socket_path
from mooncask.client.unix_http import UnixConnection
from mooncask.client.where import Where
from mooncask.errors import BadRequest, DaemonUnavailable, DeadlineExceeded, MooncaskError, revive, revive_by_code

_READ_BYTES = 1 << 20
_ANSWER_BYTES_MAX = 256 << 20

Key = bytes | str
"""A key as bytes, or as the pages show it: hex in a KV namespace, the name in an object namespace."""
Answer = TypeVar("Answer", bound=control.Answer)


class _Failed(msgspec.Struct):
    error: str
    message: str
    data: dict[str, str | int | float] = {}


class ControlClient:
    """One kept-alive connection. Threads may share it; their calls come one after another.

    Every call ends by its deadline with DeadlineExceeded. DaemonUnavailable when nobody listens or the connection breaks;
    the next call connects anew. What the daemon refuses with comes as the error of its name.
    """

    def __init__(self, socket_path: str = "", deadline_seconds: float = 10.0) -> None:
        """`socket_path` is the daemon's own socket, by default this user's. Does not connect yet."""
        self.socket_path = http_socket_path(socket_path or default_socket_path())
        self.deadline_seconds = deadline_seconds
        self._connection = UnixConnection(self.socket_path)
        self._lock = threading.Lock()

    # --- blocks ---

    def block(self, namespace: str, key: Key, deadline_seconds: float | None = None) -> control.Block:
        """Raises NoSuchBlock, NoSuchNamespace."""
        return self._get(control.Block, _path("blocks", namespace, key), {}, deadline_seconds)

    def evict(self, namespace: str, key: Key, deadline_seconds: float | None = None) -> control.Block:
        """The block as it was; gone from all tiers, durably. Raises NoSuchBlock, AccessDenied."""
        return self._ask(control.Block, "DELETE", _path("blocks", namespace, key), b"", deadline_seconds)

    def pin(self, namespace: str, key: Key, deadline_seconds: float | None = None) -> control.Block:
        """Pins count. Raises NoSuchBlock, PinLimitExceeded, AccessDenied."""
        return self._act(namespace, key, "pin", {}, deadline_seconds)

    def unpin(self, namespace: str, key: Key, deadline_seconds: float | None = None) -> control.Block:
        """Unpinning what is not pinned does nothing. Raises NoSuchBlock, AccessDenied."""
        return self._act(namespace, key, "unpin", {}, deadline_seconds)

    def hold(self, request: HoldRequest, deadline_seconds: float | None = None) -> Holding:
        """As `HoldRequest` says. Raises NoSuchNamespace, PinLimitExceeded, AccessDenied, BadRequest."""
        return self._ask(Holding, "POST", "/-/v1/hold", msgspec.json.encode(request), deadline_seconds)

    def set_ttl(self, namespace: str, key: Key, seconds: float, deadline_seconds: float | None = None) -> control.Block:
        """The block vanishes `seconds` from now; 0 = never. Raises NoSuchBlock, AccessDenied."""
        return self._act(namespace, key, "ttl", {"seconds": f"{seconds:.3f}"}, deadline_seconds)

    # --- chains ---

    def children(
        self,
        namespace: str,
        parent: Key = "",
        after: Key = "",
        limit: int = 100,
        deadline_seconds: float | None = None,
    ) -> control.Children:
        """What continues `parent`, or where chains begin; go on with `after` = the last key while there is `more`."""
        query = {"parent": _text(parent), "after": _text(after), "limit": str(limit)}
        return self._get(control.Children, _path("chains", namespace), query, deadline_seconds)

    def path(self, namespace: str, key: Key, deadline_seconds: float | None = None) -> control.Path:
        """The blocks from where the chain begins to `key`. Raises NoSuchBlock."""
        return self._get(control.Path, _path("chains", namespace, key), {}, deadline_seconds)

    def tips(
        self, namespace: str, after: Key = "", limit: int = 100, deadline_seconds: float | None = None
    ) -> control.Tips:
        """Blocks that nothing continues; go on as with `children`."""
        query = {"after": _text(after), "limit": str(limit)}
        return self._get(control.Tips, _path("tips", namespace), query, deadline_seconds)

    # --- prompts ---

    def match(
        self,
        namespace: str,
        tokens: Sequence[int] = (),
        keys: Sequence[Key] = (),
        cache_salt: str = "",
        deadline_seconds: float | None = None,
    ) -> control.Matched:
        """Which prefix of a prompt is here. Tokens, or keys; counted as a look-up."""
        return self._prompt(control.Matched, "match", namespace, tokens, keys, cache_salt, deadline_seconds)

    def why(
        self,
        namespace: str,
        tokens: Sequence[int] = (),
        keys: Sequence[Key] = (),
        cache_salt: str = "",
        deadline_seconds: float | None = None,
    ) -> control.Why:
        """The usable prefix, the first block that missed, and what became of it. Tokens, or keys."""
        return self._prompt(control.Why, "why", namespace, tokens, keys, cache_salt, deadline_seconds)

    def where(
        self,
        namespace: str,
        tokens: Sequence[int] = (),
        keys: Sequence[Key] = (),
        cache_salt: str = "",
        deadline_seconds: float | None = None,
    ) -> Where:
        """Which nodes have which blocks, and in which tiers. Tokens, or keys."""
        return self._prompt(Where, "where", namespace, tokens, keys, cache_salt, deadline_seconds)

    # --- ahead of need ---

    def replicate(
        self,
        namespace: str,
        to: str,
        tokens: Sequence[int] = (),
        keys: Sequence[Key] = (),
        cache_salt: str = "",
        deadline_seconds: float = 30.0,
    ) -> control.Replicated:
        """Blocks of this node to the node called `to`, which pulls them; answered when it has them or has refused them. Tokens, or
        keys. Raises BadRequest for a node that is not known."""
        request = control.ReplicateRequest(
            namespace=namespace,
            to=to,
            tokens=[int(token) for token in tokens],
            keys=[_text(key) for key in keys],
            cache_salt=cache_salt,
            deadline_seconds=deadline_seconds,
        )
        seconds = deadline_seconds + self.deadline_seconds
        return self._ask(control.Replicated, "POST", "/-/v1/replicate", msgspec.json.encode(request), seconds)

    def warm(
        self,
        namespace: str,
        tokens: Sequence[int] = (),
        keys: Sequence[Key] = (),
        cache_salt: str = "",
        deadline_seconds: float | None = None,
    ) -> control.Warming:
        """Begins to bring blocks into memory, from NVMe or other nodes. Tokens, or keys."""
        return self._prompt(control.Warming, "warm", namespace, tokens, keys, cache_salt, deadline_seconds)

    # --- the daemon ---

    def events(self, limit: int = 100, deadline_seconds: float | None = None) -> control.Events:
        """The newest departures and misses."""
        return self._get(control.Events, "/-/v1/events", {"limit": str(limit)}, deadline_seconds)

    def peers(self, deadline_seconds: float | None = None) -> control.Peers:
        return self._get(control.Peers, "/-/v1/peers", {}, deadline_seconds)

    def overview(self, deadline_seconds: float | None = None) -> control.Overview:
        return self._get(control.Overview, "/-/v1/overview", {}, deadline_seconds)

    def config(self, deadline_seconds: float | None = None) -> control.ConfigPage:
        return self._get(control.ConfigPage, "/-/v1/config", {}, deadline_seconds)

    # --- the connection ---

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _get(self, kind: type[Answer], path: str, query: dict[str, str], seconds: float | None) -> Answer:
        shown = urlencode({name: value for name, value in query.items() if value})
        return self._ask(kind, "GET", f"{path}?{shown}" if shown else path, b"", seconds)

    def _act(
        self, namespace: str, key: Key, action: str, query: dict[str, str], seconds: float | None
    ) -> control.Block:
        path = f"{_path('blocks', namespace, key)}/{action}"
        return self._ask(control.Block, "POST", f"{path}?{urlencode(query)}" if query else path, b"", seconds)

    def _prompt(
        self,
        kind: type[Answer],
        page: str,
        namespace: str,
        tokens: Sequence[int],
        keys: Sequence[Key],
        cache_salt: str,
        seconds: float | None,
    ) -> Answer:
        request = control.WhyRequest(
            namespace=namespace,
            tokens=[int(token) for token in tokens],
            keys=[_text(key) for key in keys],
            cache_salt=cache_salt,
        )
        return self._ask(kind, "POST", f"/-/v1/{page}", msgspec.json.encode(request), seconds)

    def _ask(self, kind: type[Answer], method: str, path: str, body: bytes, seconds: float | None) -> Answer:
        given = self.deadline_seconds if seconds is None else seconds
        until = time.monotonic() + given
        if not self._lock.acquire(timeout=max(0.0, given)):
            raise DeadlineExceeded(f"{method} {path[:80]}", given)
        try:
            status, data = self._exchange(method, path, body, until)
        except TimeoutError as error:
            self._connection.close()
            raise DeadlineExceeded(f"{method} {path[:80]}", given) from error
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise DaemonUnavailable(self.socket_path, _cause(error)) from error
        finally:
            self._lock.release()
        if status != 200:
            raise _error(status, data)
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError as error:
            raise DaemonUnavailable(self.socket_path, f"its answer is not understood: {error}") from error

    def _exchange(self, method: str, path: str, body: bytes, until: float) -> tuple[int, bytes]:
        connection = self._connection
        connection.drop_if_ended()
        connection.timeout = _left(until)
        if connection.sock is not None:
            connection.sock.settimeout(connection.timeout)
        connection.request(method, path, body or None, {"Host": "localhost"})
        response = connection.getresponse()
        data = bytearray()
        while piece := response.read(_READ_BYTES):
            data += piece
            if len(data) > _ANSWER_BYTES_MAX:
                raise http.client.HTTPException(f"an answer of more than {_ANSWER_BYTES_MAX} bytes")
            if connection.sock is not None:
                connection.sock.settimeout(_left(until))
        return response.status, bytes(data)


def _left(until: float) -> float:
    """Seconds that are left, for a socket. Raises TimeoutError."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _text(key: Key) -> str:
    return key.hex() if isinstance(key, bytes) else key


def _path(page: str, namespace: str, key: Key | None = None) -> str:
    if not namespace or key in (b"", ""):
        raise BadRequest("a namespace and a key are wanted; one of them is empty")
    tail = "" if key is None else "/" + quote(_text(key), safe="", errors="surrogateescape")
    return f"/-/v1/{page}/{quote(namespace, safe='')}{tail}"


def _cause(error: Exception) -> str:
    """Why it failed, in the words that the local socket has for it."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _error(status: int, data: bytes) -> MooncaskError:
    """The error that the daemon answered: the pages' JSON, or S3's XML from what stands before every page."""
    try:
        failed = msgspec.json.decode(data, type=_Failed)
    except msgspec.MsgspecError:
        return _from_xml(status, data)
    return revive(failed.error, failed.message, failed.data)


def _from_xml(status: int, data: bytes) -> MooncaskError:
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError:
        return BadRequest(f"the daemon answered {status}: {data[:80]!r}")
    code, message = root.findtext("Code", ""), root.findtext("Message", "")
    return revive_by_code(code, message) or BadRequest(f"{code or status}: {message}")
