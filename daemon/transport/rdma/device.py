"""This process's RDMA: the port that was chosen, the arena registered on it, and the thread that speaks to it.

Registering pins the arena; it is done in a thread before the node says that it serves. What is pinned can be read by every node
that knows the cluster's secret, leased or not (docs/THREATS.md), and never be written by any.
"""

import asyncio
import logging
import mmap
import secrets

import numpy as np

from mooncask.daemon.transport.rdma.engine import Engine
from mooncask.daemon.transport.rdma.exchange import NONCE_BYTES
from mooncask.daemon.transport.rdma.ports import Place, choose_place
from mooncask.daemon.transport.rdma.regions import (
    REQUEST_BYTES_MAX,
    REQUEST_BYTES_MIN,
    Region,
    Regions,
)
from mooncask.daemon.transport.rdma.verbs import Device, VerbsError, load_verbs
from mooncask.errors import ConfigError
from mooncask.tiers.shared_memory import SharedMemory

log = logging.getLogger(__name__)


class Landing:
    """A page with this process's nonce, which others fetch as a proof, and a place for theirs beside it."""

    def __init__(self, device: Device) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self._memory[:NONCE_BYTES] = self.nonce
        array = np.frombuffer(self._memory, np.uint8)
        found = device.register(array.ctypes.data, len(array))
        [self.shared], [self.ours] = found.shared, found.ours

    @property
    def place(self) -> Region:
        """Where another's nonce goes, as this side names it."""
        return Region(0, NONCE_BYTES, self.ours.address + NONCE_BYTES, self.ours.key)

    def clear(self) -> None:
        self._memory[NONCE_BYTES : 2 * NONCE_BYTES] = bytes(NONCE_BYTES)

    def landed(self) -> bytes:
        return self._memory[NONCE_BYTES : 2 * NONCE_BYTES]


class OpenDevice:
    """A device with the arena registered. Made in any thread; `start` makes the engine in the loop's."""

    def __init__(self, device: Device, memory: SharedMemory, request_bytes: int) -> None:
        """Raises VerbsError."""
        self.place: Place = device.place
        self._device = device
        self._base = memory.array.ctypes.data
        self._size_bytes = memory.capacity_bytes
        self.request_bytes_max = max(
            REQUEST_BYTES_MIN, min(request_bytes, REQUEST_BYTES_MAX, device.place.port.message_bytes_max)
        )
        self.landing = Landing(device)
        self.probing = asyncio.Lock()
        """There is one landing place."""
        registered = device.register(self._base, self._size_bytes)
        self.ours = Regions(registered.ours)
        self.shared = registered.shared
        self.bytes_read = 0
        self._engine: Engine | None = None

    def start(self) -> None:
        self._engine = Engine(self._device)

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "start comes first"
        return self._engine

    def offset_of(self, target: memoryview) -> int | None:
        """Where in the arena this memory is; None: it is none of the arena's."""
        if not len(target):
            return None
        offset = int(np.frombuffer(target, np.uint8).ctypes.data) - self._base
        return offset if 0 <= offset <= self._size_bytes - len(target) else None

    async def close(self) -> None:
        """After all links and the server."""
        if self._engine is not None:
            await self._engine.close()
        else:
            self._device.close()


def open_device(
    transport: str, memory: SharedMemory, host: str, request_bytes: int = REQUEST_BYTES_MAX
) -> OpenDevice | None:
    """None where `transport` (cluster.transport) is "tcp", or "auto" and there is no RDMA here, which is logged. Blocks.

    `host` is where other nodes reach this one: of several ports the one with that address is taken. Raises ConfigError where
    "rdma" is demanded and there is none.
    """
    if transport == "tcp":
        return None
    try:
        opened = _open(memory, host, request_bytes)
    except VerbsError as error:
        if transport == "rdma":
            raise ConfigError(
                "cluster.transport", '"rdma"', f"needs an RDMA device with an active port: {error}"
            ) from error
        log.info("blocks go over TCP: %s", error)
        return None
    port, gid = opened.place.port, opened.place.gid
    log.info("RDMA on %s port %d, GID %d (%s)", port.device, port.number, gid.index, gid.address)
    return opened


def _open(memory: SharedMemory, host: str, request_bytes: int) -> OpenDevice:
    verbs = load_verbs()
    ports = verbs.ports()
    if not ports:
        raise VerbsError("this machine has no RDMA device")
    place = choose_place(ports, host)
    if place is None:
        names = ", ".join(f"{port.device} port {port.number}" for port in ports)
        raise VerbsError(f"no port is active with a RoCE v2 or InfiniBand GID ({names})")
    device = verbs.open(place)
    try:
        return OpenDevice(device, memory, request_bytes)
    except BaseException:
        device.close()
        raise
