"""What a link's peer holds here: references on blocks, and which of them are being sent. Blocking-free, thread-safe.

    granted ──(read begins)── sending ──(bytes are in the kernel)── granted
       └────────── released, or the link ended ─────────┴──> dropped, but never while it is being sent

The event loop grants, releases and ends; the threads that send call `begin` and `end_sending`. `drop` runs in the loop's thread only.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mooncask.daemon.transport.messages import ReadPieces
from mooncask.daemon.transport.transport import HeldBlock
from mooncask.errors import Busy, OutOfBounds, PeerUnavailable, UnknownLease
from mooncask.tiers.block import printable_key


@dataclass(frozen=True, slots=True)
class LeaseLimits:
    """Of one link."""

    leases_max: int
    bytes_max: int


@dataclass(slots=True, eq=False)
class _Served:
    held: HeldBlock
    granted_seconds: float
    sends: int = 0
    ended: bool = False


class ServedLeases:
    """The leases of one link. `drop_soon` is called from any thread and must have `drop` done in the loop's."""

    def __init__(
        self, limits: LeaseLimits, drop: Callable[[HeldBlock], None], drop_soon: Callable[[HeldBlock], None]
    ) -> None:
        self._limits = limits
        self._drop = drop
        self._drop_soon = drop_soon
        self._lock = threading.Lock()
        self._leases: dict[int, _Served] = {}
        self._bytes = 0
        self._over = False

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def leased_bytes(self) -> int:
        return self._bytes

    # --- the loop's thread ---

    def check_room(self, count: int) -> None:
        """Before anything is held. Raises Busy."""
        if len(self._leases) + count > self._limits.leases_max:
            raise Busy(f"this link has {len(self._leases)} leases; at most {self._limits.leases_max} are allowed")

    def grant(self, numbers: Sequence[int], held: Sequence[HeldBlock], now_seconds: float) -> None:
        """All of them, or none and Busy or PeerUnavailable: then the caller still has them."""
        size_bytes = sum(len(block.payload) for block in held)
        with self._lock:
            if self._over:
                raise PeerUnavailable("of this link", "the link has ended")
            if self._bytes + size_bytes > self._limits.bytes_max:
                raise Busy(
                    f"this link would hold {self._bytes + size_bytes} bytes; {self._limits.bytes_max} are allowed"
                )
            self._bytes += size_bytes
            for number, block in zip(numbers, held, strict=True):
                self._leases[number] = _Served(block, now_seconds)

    def release(self, numbers: Sequence[int]) -> None:
        """Unknown ones are ignored: the link's end may have come first."""
        with self._lock:
            ended = [self._leases.pop(number) for number in numbers if number in self._leases]
            idle = self._end(ended)
        for block in idle:
            self._drop(block)

    def end(self) -> None:
        """The link is over. What is being sent is dropped by the thread that sends it. Idempotent."""
        with self._lock:
            self._over = True
            idle = self._end(list(self._leases.values()))
            self._leases.clear()
        for block in idle:
            self._drop(block)

    def held(self, number: int) -> HeldBlock | None:
        """What a lease holds; None for one that has ended."""
        served = self._leases.get(number)
        return None if served is None else served.held

    def oldest_seconds(self) -> float | None:
        """When the oldest lease was granted."""
        return next((served.granted_seconds for served in self._leases.values()), None)

    def _end(self, ended: Sequence[_Served]) -> list[HeldBlock]:
        for served in ended:
            served.ended = True
            self._bytes -= len(served.held.payload)
        return [served.held for served in ended if not served.sends]

    # --- threads that send ---

    def begin(self, read: ReadPieces) -> "Sending":
        """The pieces' bytes, which stay where they are until `Sending.end`. Raises UnknownLease and OutOfBounds."""
        with self._lock:
            served = [self._leases.get(number) for number in read.leases]
            views: list[memoryview] = []
            for number, one, start, length in zip(read.leases, served, read.starts, read.lengths, strict=True):
                if one is None:
                    raise UnknownLease(number)
                if start + length > (readable := one.held.readable):
                    raise OutOfBounds(printable_key(one.held.key), start, start + length, readable)
                views.append(one.held.payload[start : start + length])
            known = [one for one in served if one is not None]
            for one in known:
                one.sends += 1
        return Sending(self, known, views)

    def end_sending(self, known: Sequence[_Served]) -> None:
        with self._lock:
            over = []
            for one in known:
                one.sends -= 1
                if one.ended and not one.sends:
                    over.append(one.held)
        for held in over:
            self._drop_soon(held)


class Sending:
    """Pieces on their way out. One thread uses it, and ends it in any case."""

    def __init__(self, leases: ServedLeases, known: list[_Served], views: list[memoryview]) -> None:
        self._leases = leases
        self._known = known
        self.views = views

    def end(self) -> None:
        """The kernel has the bytes, or nobody wants them."""
        self.views = []
        self._leases.end_sending(self._known)
