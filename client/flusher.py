"""Gives leases back when no call comes along to take the releases with it."""

import threading
import weakref
from typing import Protocol

FLUSH_SECONDS = 0.1
"""How long a lease outlives its last view at most."""


class Flushing(Protocol):
    def flush(self) -> bool:
        """Sends what there is; says whether there may be more later."""
        ...


class Flusher:
    """A thread that sleeps without end while there is nothing that could die. Any thread may call it.

    It holds its client weakly, so that a client that is dropped can end it.
    """

    def __init__(self, client: Flushing) -> None:
        self._client = weakref.ref(client)
        self._awake = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def wake(self) -> None:
        """There is something now. Cheap when it is awake already."""
        if self._awake.is_set():
            return
        with self._starting:
            self._awake.set()
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._loop, name="mooncask-flush", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended, unless it is the caller."""
        with self._starting:
            self._stopped.set()
        self._awake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _loop(self) -> None:
        while True:
            self._awake.wait()
            if self._stopped.wait(FLUSH_SECONDS):
                return
            client = self._client()
            if client is None:
                return
            self._awake.clear()
            if self._stopped.is_set():
                return  # it was `stop` that had set what is cleared now, and nobody sets it again
            if client.flush():
                self._awake.set()
            del client  # or this thread would keep it alive
