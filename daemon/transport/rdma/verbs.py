"""The few calls of pyverbs that are used here, and nothing else: another binding would replace this module alone.

Written for pyverbs 44 (Debian's python3-pyverbs), which holds the GIL in every call: none of these waits for the network. Loaded
by `load_verbs`, so that a daemon without it starts. Not thread-safe: after start-up one thread makes all calls (`engine.py`).

Facts used: a QP made with a QPAttr goes to INIT at once with that one's access flags, and never gets others; retry_cnt 7 means
"for ever" to some devices; after a bad completion a QP is of no use any more; destroying it ends what it does to memory.
"""

import importlib.util
import ipaddress
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from mooncask.daemon.transport.rdma.exchange import End
from mooncask.daemon.transport.rdma.ports import ETHERNET, INFINIBAND, Gid, Place, Port
from mooncask.daemon.transport.rdma.regions import Region, WorkRequest, cut_arena

DEBIAN_FOLDER = Path("/usr/lib/python3/dist-packages/pyverbs")
RETRIES = 6
ACK_TIMEOUT = 14
"""4.096 µs times 2^14, 67 ms, without an acknowledgement, and a packet is sent again: a dead peer is found in half a second."""
_RNR_TIMER, _RNR_RETRIES = 12, 6
_READS_MAX = 16
_POLL_MAX = 64

PROBLEMS = {
    4: "local protection error",
    5: "flushed, as the queue pair had failed",
    9: "the peer refuses reads",
    10: "the peer's memory cannot be read there, or not with this key",
    12: "the peer does not answer",
    13: "the peer is not ready",
}


class VerbsError(Exception):
    """A call failed: the device's or the kernel's reason."""


class Completion(NamedTuple):
    number: int
    status: int
    """0 = the bytes have come."""


def load_verbs() -> "Verbs":
    """Raises VerbsError where pyverbs is missing or does not fit this Python."""
    try:
        if importlib.util.find_spec("pyverbs") is None:
            _add_debian_package()
        return Verbs()
    except (ImportError, OSError) as error:
        raise VerbsError(
            f"pyverbs cannot be loaded ({error}): apt-get install python3-pyverbs ibverbs-providers"
        ) from error


def _add_debian_package() -> None:
    """Debian's pyverbs alone, and none of its other packages, for a Python whose environment does not see them."""
    where = DEBIAN_FOLDER / "__init__.py"
    spec = importlib.util.spec_from_file_location("pyverbs", where, submodule_search_locations=[str(DEBIAN_FOLDER)])
    if not where.exists() or spec is None or spec.loader is None:
        raise ImportError("there is no pyverbs")
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["pyverbs"] = module


class Verbs:
    """pyverbs' modules, imported."""

    def __init__(self) -> None:
        from pyverbs import addr, cq, device, enums, mr, pd, qp, wr
        from pyverbs.pyverbs_error import PyverbsError

        self.addr: Any = addr
        self.cq: Any = cq
        self.device: Any = device
        self.enums: Any = enums
        self.mr: Any = mr
        self.pd: Any = pd
        self.qp: Any = qp
        self.wr: Any = wr
        self.error: type[Exception] = PyverbsError

    def ports(self) -> list[Port]:
        """Of all devices; none where the kernel has no verbs."""
        try:
            names = [found.name.decode() for found in self.device.get_device_list()]
        except self.error:
            return []
        return [port for name in names for port in self._ports_of(name)]

    def _ports_of(self, name: str) -> list[Port]:
        try:
            context = self.device.Context(name=name)
        except self.error:
            return []  # a device that this process may not open
        try:
            about = context.query_device()
            gids = context.query_gid_table(1024)
            return [self._port(context, name, number, about, gids) for number in range(1, about.phys_port_cnt + 1)]
        finally:
            context.close()

    def _port(self, context: Any, name: str, number: int, about: Any, gids: Sequence[Any]) -> Port:
        port = context.query_port(number)
        v2 = self.enums.IBV_GID_TYPE_ROCE_V2
        layer = INFINIBAND if port.link_layer == self.enums.IBV_LINK_LAYER_INFINIBAND else ETHERNET
        return Port(
            device=name,
            number=number,
            active=port.state == self.enums.IBV_PORT_ACTIVE,
            link_layer=layer,
            gids=tuple(Gid(gid.gid_index, _address(gid), gid.gid_type == v2) for gid in gids if gid.port_num == number),
            lid=port.lid,
            mtu=port.active_mtu,
            message_bytes_max=port.max_msg_sz,
            reads_max=max(1, min(_READS_MAX, about.max_qp_rd_atom, about.max_qp_init_rd_atom)),
        )

    def open(self, place: Place) -> "Device":
        """Raises VerbsError."""
        try:
            return Device(self, place)
        except self.error as error:
            raise VerbsError(f"{place.port.device}: {error}") from error


def _address(gid: Any) -> str:
    return str(gid.gid_str() if callable(gid.gid_str) else gid.gid_str)


class Registered(NamedTuple):
    """One piece of memory: with the keys that this side uses, and with those for others."""

    ours: list[Region]
    shared: list[Region]


class Device:
    """An open device with a protection domain, in which all memory and all queue pairs of this process are."""

    def __init__(self, verbs: Verbs, place: Place) -> None:
        self.verbs = verbs
        self.place = place
        self.context = verbs.device.Context(name=place.port.device)
        self.domain = verbs.pd.PD(self.context)
        self._memory: list[Any] = []

    def register(self, address: int, size_bytes: int) -> Registered:
        """Pins memory: others can read it, and only read. Takes seconds for each untouched gigabyte. Raises VerbsError."""
        access = self.verbs.enums.IBV_ACCESS_LOCAL_WRITE | self.verbs.enums.IBV_ACCESS_REMOTE_READ
        found = Registered([], [])
        for offset, length in cut_arena(size_bytes):
            try:
                memory = self.verbs.mr.MR(self.domain, length, access, address=address + offset)
            except self.verbs.error as error:
                why = f"{self.place.port.device} does not register {length} bytes: {error}"
                raise VerbsError(f"{why}; is the limit of locked memory (LimitMEMLOCK) high enough?") from error
            self._memory.append(memory)
            found.ours.append(Region(offset, length, address + offset, memory.lkey))
            found.shared.append(Region(offset, length, address + offset, memory.rkey))
        return found

    def queue_pair(self, *, readable: bool) -> "QueuePair":
        """`readable`: the other end may read this process's registered memory with it. Raises VerbsError."""
        return QueuePair(self, readable=readable)

    def close(self) -> None:
        """After all its queue pairs. Idempotent."""
        while self._memory:
            self._memory.pop().close()
        self.domain.close()
        self.context.close()


class QueuePair:
    """An RC queue pair with a completion queue of its own, so that nothing of it is left when it is destroyed."""

    def __init__(self, device: Device, *, readable: bool) -> None:
        verbs = self._verbs = device.verbs
        self._place = device.place
        reads = self.reads = device.place.port.reads_max
        self._completions = verbs.cq.CQ(device.context, 2 * reads)
        attributes = verbs.qp.QPAttr(port_num=device.place.port.number)
        attributes.qp_access_flags = verbs.enums.IBV_ACCESS_REMOTE_READ if readable else 0
        first = verbs.qp.QPInitAttr(
            qp_type=verbs.enums.IBV_QPT_RC,
            scq=self._completions,
            rcq=self._completions,
            cap=verbs.qp.QPCap(max_send_wr=reads, max_recv_wr=1, max_send_sge=1, max_recv_sge=1),
            sq_sig_all=1,
        )
        try:
            self._pair = verbs.qp.QP(device.domain, first, attributes)
        except verbs.error as error:
            self._completions.close()
            raise VerbsError(f"{device.place.port.device} makes no queue pair: {error}") from error
        self._packet = secrets.randbits(24)

    @property
    def end(self) -> End:
        """What the other side needs to know of this one."""
        port = self._place.port
        number = self._pair.qp_num
        return End(port.link_layer, self._place.gid.address, port.lid, port.mtu, number, self._packet, port.reads_max)

    def connect(self, theirs: End) -> None:
        """Raises VerbsError."""
        verbs, port = self._verbs, self._place.port
        attributes = verbs.qp.QPAttr(port_num=port.number, path_mtu=min(port.mtu, theirs.mtu))
        attributes.dest_qp_num = theirs.queue_pair
        attributes.rq_psn, attributes.sq_psn = theirs.packet, self._packet
        self.reads = min(port.reads_max, theirs.reads)
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = self.reads
        attributes.timeout, attributes.retry_cnt = ACK_TIMEOUT, RETRIES
        attributes.min_rnr_timer, attributes.rnr_retry = _RNR_TIMER, _RNR_RETRIES
        try:
            attributes.ah_attr = self._route(theirs)
            self._pair.to_rts(attributes)
        except verbs.error as error:
            raise VerbsError(f"no path from {self._place.gid.address} to {theirs.gid}: {error}") from error

    def _route(self, theirs: End) -> Any:
        addr, port = self._verbs.addr, self._place.port
        if port.link_layer == INFINIBAND:
            return addr.AHAttr(port_num=port.number, is_global=0, dlid=theirs.lid)
        spelled = ipaddress.IPv6Address(theirs.gid).exploded
        route = addr.GlobalRoute(dgid=addr.GID(spelled), sgid_index=self._place.gid.index)
        return addr.AHAttr(port_num=port.number, is_global=1, dlid=theirs.lid, gr=route)

    def post_read(self, number: int, request: WorkRequest) -> None:
        """At most `reads` are with the device at a time: it would make more of them wait. Raises VerbsError."""
        verbs = self._verbs
        work = verbs.wr.SendWR(
            wr_id=number,
            opcode=verbs.enums.IBV_WR_RDMA_READ,
            num_sge=1,
            sg=[verbs.wr.SGE(request.local_address, request.length, request.local_key)],
            send_flags=verbs.enums.IBV_SEND_SIGNALED,
        )
        work.set_wr_rdma(request.remote_key, request.remote_address)
        try:
            self._pair.post_send(work)
        except verbs.error as error:
            raise VerbsError(f"a read cannot be posted: {error}") from error

    def poll(self) -> list[Completion]:
        """What has ended since. Raises VerbsError."""
        try:
            _, found = self._completions.poll(_POLL_MAX)
        except self._verbs.error as error:
            raise VerbsError(f"completions cannot be polled: {error}") from error
        return [Completion(one.wr_id, one.status) for one in found or ()]

    def close(self) -> None:
        """From here on the device neither writes for it nor reads. Idempotent."""
        self._pair.close()
        self._completions.close()
