"""Makes links that use RDMA where both ends can, and TCP where they can't."""

import logging
import time

from mooncask.daemon.transport.rdma.device import OpenDevice
from mooncask.daemon.transport.rdma.link import RdmaLink
from mooncask.daemon.transport.rdma.session import Session
from mooncask.daemon.transport.tcp.dial import TcpDialler
from mooncask.daemon.transport.tcp.link import TcpLink
from mooncask.daemon.transport.transport import Link
from mooncask.errors import BadRequest, MooncaskError

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0


class RdmaDialler:
    """`demanded`: a link that RDMA can't serve fails (cluster.transport = "rdma"); else it is a TCP link, and the log says why."""

    def __init__(self, tcp: TcpDialler, device: OpenDevice, *, demanded: bool) -> None:
        self._tcp = tcp
        self._device = device
        self._demanded = demanded
        self._told: set[str] = set()
        """Peers of which the log has it already."""

    async def dial(self, host: str, port: int) -> Link:
        """Raises PeerUnavailable, ProtocolMismatch, AccessDenied, BadRequest."""
        inner = await self._tcp.dial(host, port)
        try:
            session = await Session.connect(self._device, inner, time.monotonic() + CONNECT_SECONDS)
        except MooncaskError as error:
            if self._demanded or not inner.alive:
                await inner.close()
                raise
            self._tell(inner, f"over TCP: {error.message}")
            if isinstance(error, BadRequest):  # it has no RDMA; the next run of it may
                return inner
            return RdmaLink(inner, self._device, None, demanded=False)
        except BaseException:
            await inner.close()
            raise
        self._tell(inner, f"by RDMA from {self._device.place.port.device}")
        return RdmaLink(inner, self._device, session, demanded=self._demanded)

    def _tell(self, link: TcpLink, how: str) -> None:
        name = link.peer.name
        if name not in self._told:
            self._told.add(name)
            log.info("peer %s: blocks come %s", name, how)
