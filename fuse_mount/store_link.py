"""The daemon as the mount uses it: namespaces by name, what is known of blocks, pages of keys.

Not here: bytes of blocks (`leased_views.py`, `long_objects.py`) and writing (`publishing.py`).
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from mooncask.client.http import HttpClient
from mooncask.client.listed_namespace import open_as_listed
from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.operations import Page
from mooncask.client.wire import BlockStat, NamespaceKind, NamespaceStat, Status
from mooncask.errors import DeadlineExceeded, NoSuchNamespace

T = TypeVar("T")

PAGE = 1000
STATUS_SECONDS = 1.0
"""For how long the list of namespaces is believed."""
SILENT_SECONDS = 1.0
"""For how long a daemon that left a look-up without an answer is not asked again: the kernel has look-ups in one folder wait
for each other, and each would wait for its own deadline."""
RECENT_SECONDS = 1.0
RECENT_MAX = 16384


@dataclass(frozen=True, slots=True)
class Namespace:
    """An open namespace and what the daemon last said of it."""

    handle: NamespaceHandle
    stat: NamespaceStat

    @property
    def name(self) -> str:
        return self.stat.name

    @property
    def is_kv(self) -> bool:
        return self.stat.kind is NamespaceKind.KV


class StoreLink:
    """One daemon. Any thread may use it; no lock is held while a request is under way.

    Every method raises what the clients raise: DaemonUnavailable, DeadlineExceeded ...
    """

    def __init__(self, client: LocalClient, deadline_seconds: float) -> None:
        self.client = client
        self.deadline_seconds = deadline_seconds
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._status_seconds = 0.0
        self._open: dict[str, NamespaceHandle] = {}
        self._silent_until = 0.0
        self._recent: dict[tuple[str, bytes], tuple[float, BlockStat]] = {}
        """KV blocks that were looked at a moment ago, with when: opening one after that asks nothing."""

    def http(self) -> HttpClient:
        """A new client of the daemon's HTTP socket."""
        return HttpClient.beside(self.client.target.path, self.deadline_seconds)

    def status(self, *, fresh: bool = False) -> Status:
        """The daemon's, at most STATUS_SECONDS old."""
        with self._lock:
            status, taken = self._status, self._status_seconds
        now = time.monotonic()
        if status is None or fresh or now - taken > STATUS_SECONDS:
            status = self._answered(self.client.status)
            with self._lock:
                self._status, self._status_seconds = status, now
        return status

    def namespaces(self) -> list[NamespaceStat]:
        return self.status().namespaces

    def namespace(self, name: bytes) -> Namespace:
        """Raises NoSuchNamespace. One that was made a moment ago is found."""
        text = name.decode(errors="surrogateescape")
        stat = self._find(text, self.status()) or self._find(text, self.status(fresh=True))
        if stat is None:
            with self._lock:
                self._open.pop(text, None)
            raise NoSuchNamespace(text)
        return Namespace(self._handle(stat), stat)

    def _handle(self, stat: NamespaceStat) -> NamespaceHandle:
        with self._lock:
            handle = self._open.get(stat.name)
        if handle is None:
            handle = self._answered(lambda: open_as_listed(self.client, stat))
            with self._lock:
                self._open[stat.name] = handle
        return handle

    def _find(self, name: str, status: Status) -> NamespaceStat | None:
        return next((stat for stat in status.namespaces if stat.name == name), None)

    def create_namespace(self, name: bytes) -> None:
        """Makes an object namespace."""
        self.client.open_namespace(name.decode(errors="surrogateescape"), kind=NamespaceKind.OBJECT)
        self.status(fresh=True)

    def drop_namespace(self, name: bytes) -> None:
        """Raises NamespaceNotEmpty, NoSuchNamespace."""
        text = name.decode(errors="surrogateescape")
        with self.http() as http:
            http.delete_namespace(text)
        with self._lock:
            self._open.pop(text, None)
        self.status(fresh=True)

    def _answered(self, ask: Callable[[], T]) -> T:
        """A look-up's answer; at once DeadlineExceeded where the daemon was found silent a moment ago."""
        if time.monotonic() < self._silent_until:
            raise DeadlineExceeded("look-up of the mount", self.deadline_seconds)
        try:
            return ask()
        except DeadlineExceeded:
            self._silent_until = time.monotonic() + SILENT_SECONDS
            raise

    # --- blocks ---

    def stat(self, namespace: Namespace, key: bytes) -> BlockStat | None:
        (found,) = self._answered(lambda: self.client.stat(namespace.handle, [key]))
        if namespace.is_kv:
            self._remember(namespace.name, [found] if found else [])
        return found

    def recent(self, namespace: Namespace, key: bytes) -> BlockStat | None:
        """What was known of a KV block less than RECENT_SECONDS ago: its bytes never change, but it may be gone."""
        seconds, block = self._recent.get((namespace.name, key), (0.0, None))
        return block if block is not None and time.monotonic() - seconds < RECENT_SECONDS else None

    def forget(self, namespace: Namespace, key: bytes) -> None:
        """The block is deleted."""
        self._recent.pop((namespace.name, key), None)

    def _remember(self, namespace: str, blocks: list[BlockStat]) -> None:
        now = time.monotonic()
        if len(self._recent) + len(blocks) > RECENT_MAX:
            self._recent = {}
        self._recent.update(((namespace, block.key), (now, block)) for block in blocks)

    def first(self, namespace: Namespace, prefix: bytes = b"", after: bytes = b"") -> BlockStat | None:
        """The first block after `after` whose key starts with `prefix`."""
        page = self.page(namespace, prefix, after, 1)
        return page.blocks[0] if page.blocks else None

    def page(self, namespace: Namespace, prefix: bytes, after: bytes, limit: int = PAGE) -> Page:
        """Blocks whose key starts with `prefix` and comes after `after`, in key order."""
        return self._answered(lambda: self.client.list_blocks(namespace.handle, prefix, after, limit))

    def pages(self, namespace: Namespace, prefix: bytes = b"", after: bytes = b"") -> Iterator[list[BlockStat]]:
        """All blocks whose key starts with `prefix`, in key order, a page at a time."""
        while True:
            page = self.page(namespace, prefix, after)
            if page.blocks:
                if namespace.is_kv:
                    self._remember(namespace.name, page.blocks)
                yield page.blocks
            if not page.more or not page.blocks:
                return
            after = page.blocks[-1].key
