"""One process's way to the daemon, for all shards it has to do with. A daemon that can't be reached costs little time.

Every call ends by its deadline. After a fault of the connection nothing is asked for a while (`patience.py`), so that a
daemon that is down or stuck does not hold back request after request.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.engine_adapter.patience import Patience
from mooncask.engine_adapter.vllm.counters import Counters
from mooncask.engine_adapter.vllm.messages import WorkerHello
from mooncask.engine_adapter.vllm.settings import ConnectorSettings
from mooncask.errors import AccessDenied, Busy, DaemonUnavailable, MooncaskError

log = logging.getLogger(__name__)

FULL_SECONDS = 1.0
CONNECT_SECONDS = 5.0
"""Connecting happens in threads; on a busy machine mapping the arena takes longer than a call."""


class StoreConnection:
    """Any thread may use it. `faults` counts what went wrong, by class of error."""

    def __init__(
        self,
        settings: ConnectorSettings,
        name: str,
        shards: Sequence[WorkerHello],
        counters: Counters,
        copies: bool = True,
    ) -> None:
        """Does not connect yet. `shards` are equal but for their shard's and namespace's names; `copies`: blocks are read and
        written through it, not only asked for."""
        self.settings = settings
        self.shards = list(shards)
        self.faults: Counter[str] = Counter()
        self.handles: list[NamespaceHandle] = []
        """One a shard, once they are open; they stay usable over reconnects."""
        self.node = ""
        """What the daemon's node is called, once it is connected."""
        self._name, self._copies, self._counters = name, copies, counters
        self._client: LocalClient | None = None
        self._patience = Patience()
        self._opening = threading.Lock()
        self._told: set[str] = set()
        self._full_until = 0.0
        self._closed = False

    def open(self) -> tuple[LocalClient, list[NamespaceHandle]]:
        """Connects and opens the namespaces if need be. Raises DaemonUnavailable, also while it is not to be asked."""
        with self._opening:
            if self._closed:
                raise DaemonUnavailable(self.settings.socket, "the engine is shutting down")
            if not self.usable:
                raise DaemonUnavailable(self.settings.socket, "it could not be reached a moment ago")
            if self._client is None or len(self.handles) < len(self.shards):
                self._connect()
            assert self._client is not None
            return self._client, self.handles

    def _connect(self) -> None:
        try:
            if self._client is None:
                client = LocalClient.connect(
                    self.settings.socket,
                    name=self._name,
                    deadline_seconds=CONNECT_SECONDS,
                    want_write=self._copies,
                    populate=self._copies,
                )
                client.deadline_seconds = self.settings.deadline_seconds
                self._client = client
            self.node = self._client.status(CONNECT_SECONDS).node
            self.handles = [self._open_namespace(self._client, shard) for shard in self.shards]
        except MooncaskError as error:
            self._patience.failed(error, time.monotonic())  # before the next thread tries, which waits for the lock
            raise

    def _open_namespace(self, client: LocalClient, shard: WorkerHello) -> NamespaceHandle:
        mode = self.settings.mode
        handle = client.open_namespace(
            shard.namespace, family=shard.family, shard=shard.shard, mode=mode, deadline_seconds=CONNECT_SECONDS
        )
        wanted = self.settings.tenant
        if wanted and handle.tenant != wanted:
            raise AccessDenied(f"the daemon takes this engine for tenant {handle.tenant!r}, not for {wanted!r}")
        log.info("KV goes to namespace %s of tenant %s, mode %s", handle.name, handle.tenant, handle.mode)
        return handle

    @property
    def usable(self) -> bool:
        """Whether the daemon is to be asked now."""
        return self._patience.may_ask(time.monotonic())

    @property
    def has_room(self) -> bool:
        """False for a moment after the daemon had no room: saves that wait would each wait for it in turn."""
        return time.monotonic() >= self._full_until

    def worked(self) -> None:
        self._patience.worked()

    def fault(self, what: str, error: MooncaskError) -> None:
        """Counts it, says it once for each kind, and lets the daemon alone for a while if it was not reached or late."""
        kind = type(error).__name__
        self.faults[kind] += 1
        self._counters.add("store_faults")
        if kind not in self._told:
            self._told.add(kind)
            log.warning("%s: going on without the store: %s (further %s are only counted)", what, error, kind)
        if isinstance(error, Busy):
            self._full_until = time.monotonic() + FULL_SECONDS
        if self.usable:  # of several calls that were under way together, one fault counts
            self._patience.failed(error, time.monotonic())

    def close(self) -> None:
        with self._opening:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            client.close()
