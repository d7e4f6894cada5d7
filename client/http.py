"""Blocks over HTTP, by TCP or by the daemon's Unix socket: for processes that share no memory with the daemon, for objects
longer than a block, and for whoever measures that path.

Covers the block operations of the S3 API and nothing else of it; any S3 client can be used for the rest. A key given as
bytes is a KV block's digest (32 hex digits in the path), one given as text is an object's name.
"""

import http.client
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

from mooncask.client.byte_views import flat_bytes
from mooncask.client.socket_path import http_socket_path
from mooncask.client.unix_http import UnixConnection
from mooncask.errors import (
    BadRequest,
    DaemonUnavailable,
    DeadlineExceeded,
    MooncaskError,
    NoSuchBlock,
    NoSuchNamespace,
    OutOfBounds,
    revive_by_code,
)

Key = bytes | str

_DOCUMENT_BYTES_MAX = 16 << 20
_READ_BYTES = 1 << 20
_SPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"
UNIX = "unix:"
"""Before a path, an address: the socket that `socket_path.http_socket_path` names."""


@dataclass(frozen=True, slots=True)
class HttpBlock:
    """What a HEAD or a listing tells. `checksum` is the ETag without its quotes: an object's MD5 in hex, or what the daemon makes
    instead; of a KV block its xxh3_128 and "-1"."""

    key: str
    size: int
    checksum: str


@dataclass(frozen=True, slots=True)
class HttpPage:
    """A part of a listing; go on with `list_blocks(..., token=next_token)` while there is one."""

    blocks: list[HttpBlock]
    next_token: str


@dataclass(frozen=True, slots=True)
class _Time:
    """A call's time: how much it had, and when (on time.monotonic()) it is over."""

    seconds: float
    end: float


class HttpClient:
    """One kept-alive connection to a daemon's HTTP address. One thread at a time.

    Every call ends by its deadline with DeadlineExceeded. DaemonUnavailable when nobody listens or the connection breaks;
    the next call connects anew. What the daemon refuses with comes as the error of its name.
    """

    def __init__(self, address: str, deadline_seconds: float = 30.0) -> None:
        """`address` is http://host:port, host:port, or unix:/path of a socket. Does not connect yet. Raises BadRequest for
        another address."""
        self.deadline_seconds = deadline_seconds
        if address.startswith(UNIX):
            self.address = address
            self._connection: http.client.HTTPConnection = UnixConnection(address.removeprefix(UNIX))
            return
        parts = urlsplit(address if "//" in address else f"//{address}")
        if parts.scheme not in ("", "http") or not parts.hostname or parts.path not in ("", "/"):
            raise BadRequest(f"address {address!r}: http://host:port is wanted")
        self.address = f"http://{parts.netloc}"
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port or 80)

    @classmethod
    def beside(cls, socket_path: str, deadline_seconds: float = 30.0) -> Self:
        """A client of the daemon whose own socket this is, over its Unix socket for HTTP."""
        return cls(UNIX + http_socket_path(socket_path), deadline_seconds)

    def put(self, namespace: str, key: Key, payload: Any, deadline_seconds: float | None = None) -> str:
        """Stores a block, or an object of any length, and returns its ETag without the quotes. In write_through namespaces it
        is durable then.

        Raises NoSuchNamespace, LengthMismatch, BlockTooLarge, EmptyBlock, QuotaExceeded, Busy …
        """
        body = flat_bytes(payload)
        headers = {"Content-Length": str(body.nbytes)}
        response = self._ask("PUT", namespace, key, self._time(deadline_seconds), headers=headers, body=body.data)
        response.read()
        return _checksum(response)

    def get(
        self,
        namespace: str,
        key: Key,
        start: int = 0,
        stop: int | None = None,
        deadline_seconds: float | None = None,
        *,
        checksum: str = "",
    ) -> bytes:
        """A block, or its bytes [start, stop). Raises NoSuchBlock, NoSuchNamespace, OutOfBounds.

        With `checksum`, as `head` told it, only that version is read: the daemon refuses when another one took its place.
        """
        if start == stop:
            return b""
        whole = start == 0 and stop is None
        headers = {} if whole else {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"}
        if checksum:
            headers["If-Match"] = f'"{checksum}"'
        until = self._time(deadline_seconds)
        response = self._ask("GET", namespace, key, until, headers=headers)
        found = bytearray(self._length(response))
        self._read_into(response, memoryview(found), until)
        return bytes(found)

    def get_into(self, namespace: str, key: Key, buffer: Any, deadline_seconds: float | None = None) -> int:
        """Streams a block into a writable buffer at least as long; returns its size. Raises NoSuchBlock, OutOfBounds."""
        target = flat_bytes(buffer, writable=True)
        until = self._time(deadline_seconds)
        response = self._ask("GET", namespace, key, until)
        size = self._length(response)
        if size > target.nbytes:
            self._connection.close()
            raise OutOfBounds(_shown(key), 0, target.nbytes, size)
        self._read_into(response, target.data[:size], until)
        return size

    def head(self, namespace: str, key: Key, deadline_seconds: float | None = None) -> HttpBlock:
        """Raises NoSuchBlock, also when there is no such namespace: a HEAD's answer has no text to tell them apart."""
        response = self._ask("HEAD", namespace, key, self._time(deadline_seconds))
        response.read()
        return HttpBlock(_shown(key), self._length(response), _checksum(response))

    def copy(self, namespace: str, key: Key, source: Key, deadline_seconds: float | None = None) -> None:
        """Stores the object `source` of the same namespace under `key` as well. Raises NoSuchBlock, QuotaExceeded, Busy …"""
        headers = {"x-amz-copy-source": f"{_path(namespace, source)}", "Content-Length": "0"}
        self._ask("PUT", namespace, key, self._time(deadline_seconds), headers=headers).read()

    def delete(self, namespace: str, key: Key, deadline_seconds: float | None = None) -> None:
        """Deletes a block from all tiers, durably; one that is not there is deleted too."""
        self._ask("DELETE", namespace, key, self._time(deadline_seconds)).read()

    def create_namespace(self, namespace: str, deadline_seconds: float | None = None) -> None:
        """Makes an object namespace (a bucket); one that is there stays."""
        self._ask("PUT", namespace, "", self._time(deadline_seconds)).read()

    def delete_namespace(self, namespace: str, deadline_seconds: float | None = None) -> None:
        """Raises NamespaceNotEmpty, NoSuchNamespace."""
        self._ask("DELETE", namespace, "", self._time(deadline_seconds)).read()

    def list_blocks(
        self,
        namespace: str,
        prefix: str = "",
        limit: int = 1000,
        token: str = "",
        deadline_seconds: float | None = None,
    ) -> HttpPage:
        """Blocks in key order; keys are hex in KV namespaces. Raises NoSuchNamespace."""
        query = {"list-type": "2", "prefix": prefix, "max-keys": str(limit)}
        if token:
            query["continuation-token"] = token
        response = self._ask("GET", namespace, "", self._time(deadline_seconds), query=query)
        return _page(_document(response, self.address))

    def close(self) -> None:
        """Ends the connection; another call would open it again."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- requests ---

    def _ask(
        self,
        method: str,
        namespace: str,
        key: Key,
        deadline: _Time,
        *,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        body: memoryview | None = None,
    ) -> http.client.HTTPResponse:
        """A successful answer, its body unread. A connection that the daemon had closed while it was idle is made anew."""
        path = _path(namespace, key) + (f"?{urlencode(query)}" if query else "")
        was_open = self._connection.sock is not None
        try:
            response = self._send(method, path, headers or {}, body, deadline)
        except DaemonUnavailable:
            if not was_open:
                raise
            response = self._send(method, path, headers or {}, body, deadline)
        if response.status >= 300:
            raise self._error(response, namespace, key)
        return response

    def _send(
        self, method: str, path: str, headers: Mapping[str, str], body: memoryview | None, deadline: _Time
    ) -> http.client.HTTPResponse:
        try:
            self._set_timeout(deadline)
            self._connection.request(method, path, body, dict(headers))
            return self._connection.getresponse()
        except TimeoutError as exc:
            self._connection.close()
            raise DeadlineExceeded(f"{method} {path}", deadline.seconds) from exc
        except (OSError, http.client.HTTPException) as exc:
            self._connection.close()
            raise DaemonUnavailable(self.address, str(exc) or type(exc).__name__) from exc

    def _read_into(self, response: http.client.HTTPResponse, target: memoryview, deadline: _Time) -> None:
        done = 0
        try:
            while done < len(target):
                self._set_timeout(deadline)
                count = response.readinto(target[done : done + _READ_BYTES])
                if not count:
                    raise DaemonUnavailable(self.address, f"it sent {done} of {len(target)} bytes")
                done += count
            response.read()
        except TimeoutError as exc:
            self._connection.close()
            raise DeadlineExceeded(f"GET of {len(target)} bytes, {done} came", deadline.seconds) from exc
        except (OSError, http.client.HTTPException) as exc:
            self._connection.close()
            raise DaemonUnavailable(self.address, str(exc) or type(exc).__name__) from exc
        except BaseException:
            self._connection.close()
            raise

    def _set_timeout(self, deadline: _Time) -> None:
        left = deadline.end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.timeout = left
        if self._connection.sock is not None:
            self._connection.sock.settimeout(left)

    def _time(self, deadline_seconds: float | None) -> _Time:
        seconds = self.deadline_seconds if deadline_seconds is None else deadline_seconds
        return _Time(seconds, time.monotonic() + seconds)

    def _length(self, response: http.client.HTTPResponse) -> int:
        text = response.getheader("Content-Length", "")
        if not text.isascii() or not text.isdigit():
            self._connection.close()
            raise DaemonUnavailable(self.address, f"its answer has Content-Length {text!r}")
        return int(text)

    def _error(self, response: http.client.HTTPResponse, namespace: str, key: Key) -> MooncaskError:
        """The error that the daemon answered, by S3's <Code>."""
        root = None if response.length == 0 else _document(response, self.address, "Error")
        code = root.findtext("Code", "") if root is not None else ""
        message = root.findtext("Message", "") if root is not None else f"the daemon answered {response.status}"
        if code == NoSuchNamespace.code:
            return NoSuchNamespace(namespace)
        if code == NoSuchBlock.code or response.status == 404:
            return NoSuchBlock(namespace, _shown(key))
        return revive_by_code(code, message) or BadRequest(f"{code or response.status}: {message}")


def _path(namespace: str, key: Key) -> str:
    return f"/{quote(namespace, safe='')}" + (f"/{quote(_shown(key), safe='/')}" if key else "")


def _shown(key: Key) -> str:
    return key.hex() if isinstance(key, bytes) else key


def _checksum(response: http.client.HTTPResponse) -> str:
    return response.getheader("ETag", "").strip('"')


def _document(response: http.client.HTTPResponse, address: str, root: str = "") -> ElementTree.Element:
    data = response.read(_DOCUMENT_BYTES_MAX)
    try:
        found = ElementTree.fromstring(data) if data else ElementTree.Element(root)
    except ElementTree.ParseError as exc:
        raise DaemonUnavailable(address, f"its answer {response.status} is no XML: {data[:80]!r}") from exc
    return found


def _page(root: ElementTree.Element) -> HttpPage:
    blocks = [
        HttpBlock(
            item.findtext(f"{_SPACE}Key", ""),
            int(item.findtext(f"{_SPACE}Size", "0")),
            item.findtext(f"{_SPACE}ETag", "").strip('"'),
        )
        for item in root.iterfind(f"{_SPACE}Contents")
    ]
    return HttpPage(blocks, root.findtext(f"{_SPACE}NextContinuationToken", ""))
