"""Which leases and reservations this process holds, and how they end: with the last view of the block.

A lease is tied to one small array object over the block's bytes that is never handed out itself. Every memoryview, numpy
array or tensor made from the block keeps that object alive, so its death is the proof that nobody can read the block any
more. The weak reference's callback may run in any thread and inside the garbage collector: it only pops from a dict and
appends to a deque, takes no lock and does no I/O. A client sends what has gathered with its next call or timer tick.

Leases belong to the process and not to a connection, so all clients of one process and socket share a book. Reservations
belong to a connection, but when that is cut their places stay out of use for as long as the process names them: somebody
may still be writing there.
"""

import os
import secrets
import threading
import time
import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

OFFER_SECONDS = 6.0
"""A daemon accepts an adoption token for 5 s; after this long a lease that was offered and not adopted is given back."""


class LeaseRef(weakref.ref[Any]):
    """Watches the array of one leased block. Made as `LeaseRef(array, lease_died)` and filled in: that costs half of a Python
    constructor, 32 times an acquire."""

    __slots__ = ("book", "generation", "lease")

    book: "LeaseBook"
    generation: int
    lease: int


def lease_died(ref: Any) -> None:
    """The callback of a `LeaseRef`."""
    book: LeaseBook = ref.book
    if book.live.pop(ref.lease, None) is not None:
        book.pending.append((ref.lease, ref.generation))


class SlotRef(weakref.ref[Any]):
    """Watches the array of one reserved place."""

    __slots__ = ("book", "generation", "outbox", "reservation")

    book: "LeaseBook"
    generation: int
    outbox: "Outbox"
    reservation: int


def _slot_died(ref: Any) -> None:
    book: LeaseBook = ref.book
    if book.writing.pop(ref.reservation, None) is not None:
        # A connection that is gone can't abort; what it left is parked, and any connection of the process may.
        outbox = ref.outbox if ref.outbox.open else book.parked
        outbox.aborts.append((ref.reservation, ref.generation))


class Outbox:
    """(reservation, generation) of places to give back on one connection; `open` while there is one."""

    def __init__(self) -> None:
        self.aborts: deque[tuple[int, int]] = deque()
        self.open = True

    def take(self, count_max: int) -> list[tuple[int, int]]:
        return _take(self.aborts, count_max)


class LeaseBook:
    """The leases of this process at one daemon. Any thread may use it."""

    def __init__(self) -> None:
        self.daemon = b""
        """Which start of the daemon the leases are of."""
        self.live: dict[int, LeaseRef] = {}
        self.pending: deque[tuple[int, int]] = deque()
        """(lease, generation) of those to give back."""
        self.offered: deque[tuple[float, int, int]] = deque()
        """(due, lease, generation) of those handed over, in case nobody adopts them."""
        self.writing: dict[int, SlotRef] = {}
        """Reservations that are neither committed nor aborted."""
        self.parked = Outbox()
        """Those of connections that are gone."""
        self.hello_lock = threading.Lock()
        """Held while a connection introduces itself: a Hello names the live leases and frees the others, so that two at
        once could each free what the other is about to name."""

    def met(self, daemon: bytes) -> None:
        """A connection reached this start of the daemon. Another start knows none of the leases: they are void.

        Views of void leases stay readable: they hold the old daemon's memory, which nobody else writes to any more.
        """
        if daemon != self.daemon:
            self.daemon = daemon
            self.live.clear()
            self.pending.clear()
            self.offered.clear()
            self.writing.clear()
            self.parked.aborts.clear()

    def named_in_hello(self) -> list[int]:
        """What is not over for the daemon: leases and places with views, and those that are still to be given back."""
        dying = [*self.pending.copy(), *self.parked.aborts.copy()]
        return [*self.live, *self.writing, *(number for number, _ in dying)]

    def watch_slot(self, array: Bytes, reservation: int, generation: int, outbox: Outbox) -> None:
        """The place is given back when `array` dies, unless the reservation is settled before."""
        ref = SlotRef(array, _slot_died)
        ref.reservation, ref.generation, ref.book, ref.outbox = reservation, generation, self, outbox
        self.writing[reservation] = ref

    def settle(self, reservation: int) -> None:
        """The reservation is being committed: its array's death means nothing any more."""
        self.writing.pop(reservation, None)

    def hand_over(self, ref: LeaseRef) -> None:
        """The lease is about to belong to another process: its array's death no longer ends it."""
        if self.live.pop(ref.lease, None) is not None:
            self.offered.append((time.monotonic() + OFFER_SECONDS, ref.lease, ref.generation))

    def take_pending(self, count_max: int) -> list[tuple[int, int]]:
        """Up to `count_max` leases to give back; they are the caller's to send now."""
        return _take(self.pending, count_max)

    def take_unadopted(self) -> list[tuple[int, int]]:
        """Leases whose offer is over. They may have been adopted, so each is to be released by a request of its own.

        One that this very process adopted, over another connection or the same, is its own again and no longer offered.
        """
        found, now = [], time.monotonic()
        while True:
            try:
                if self.offered[0][0] > now:  # stays where it is: `busy` must not miss it
                    break
                until, lease, generation = self.offered.popleft()
            except IndexError:  # there is none, or another client of this process took it
                break
            if until > now:  # another client took the one before it
                self.offered.appendleft((until, lease, generation))
                break
            if lease not in self.live:
                found.append((lease, generation))
        return found

    @property
    def busy(self) -> bool:
        """Whether there may be something to send without a call being made."""
        return bool(self.live or self.pending or self.offered or self.writing or self.parked.aborts)


def _take(source: "deque[tuple[int, int]]", count_max: int) -> list[tuple[int, int]]:
    """Clients of one process share a book, and each may take in the same moment."""
    found: list[tuple[int, int]] = []
    while len(found) < count_max:
        try:
            found.append(source.popleft())
        except IndexError:
            break
    return found


class Process:
    """Who this process is to daemons: a random token, and a lease book for each socket."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.token = secrets.token_bytes(16)
        self._books: dict[str, LeaseBook] = {}

    def book(self, socket_path: str) -> LeaseBook:
        return self._books.setdefault(os.path.realpath(socket_path), LeaseBook())


_process = Process()


def this_process() -> Process:
    """The calling process. A forked child is a process of its own: it has another token and no leases."""
    global _process  # the one thing that is a process's own and not a client's
    if _process.pid != os.getpid():
        _process = Process()
    return _process
