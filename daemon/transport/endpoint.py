"""This node's end of all links, made of the configuration: the listener for others, and the pool of links to them."""

import asyncio
import logging
from dataclasses import dataclass

from mooncask.daemon.config import Config
from mooncask.daemon.config_source import split_listen
from mooncask.daemon.http.callers.credentials import secret_of_file
from mooncask.daemon.transport.authentication import derive_key
from mooncask.daemon.transport.pool import Dial, Links
from mooncask.daemon.transport.rdma.device import OpenDevice, open_device
from mooncask.daemon.transport.rdma.dial import RdmaDialler
from mooncask.daemon.transport.rdma.serve import Responder
from mooncask.daemon.transport.served_leases import LeaseLimits
from mooncask.daemon.transport.tcp.dial import TcpDialler
from mooncask.daemon.transport.tcp.handshake import Credentials
from mooncask.daemon.transport.tcp.server import TcpServer, bind_listener, bound_address
from mooncask.daemon.transport.tcp.settings import LinkSettings, ServeSettings
from mooncask.daemon.transport.tcp.tls import peer_tls
from mooncask.daemon.transport.transport import BlockProvider, LinkPool, NodeIdentity, PeerServer
from mooncask.tiers.shared_memory import SharedMemory

log = logging.getLogger(__name__)

LEASES_OF_A_LINK_MAX = 8192
SHARE_OF_A_LINK = 0.25
"""Of the DRAM that may be held at all, what the leases of one link may hold."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    identity: NodeIdentity
    server: PeerServer
    pool: LinkPool
    device: OpenDevice | None
    """None: blocks go over TCP."""

    async def close(self) -> None:
        """Links to others first: what their threads receive into belongs to the store."""
        await self.pool.close()
        await self.server.close()
        if self.device is not None:
            await self.device.close()


async def open_endpoint(config: Config, incarnation: bytes, provider: BlockProvider, arena: SharedMemory) -> Endpoint:
    """Listening on cluster.listen, with this run's incarnation. Raises ConfigError and AddressInUse.

    `arena` is where `provider`'s blocks are and what is read goes to: with RDMA it is registered here, before anybody is served.
    """
    cluster = config.cluster
    secret = cluster.secret
    if cluster.secret_file:
        secret = await asyncio.to_thread(secret_of_file, "cluster.secret_file", cluster.secret_file)
    tls = await asyncio.to_thread(peer_tls, cluster)
    sock = await asyncio.to_thread(bind_listener, cluster.listen)
    device: OpenDevice | None = None
    try:
        device = await _device_for(config, arena)
        identity = NodeIdentity(config.node.name, incarnation, cluster.advertise or bound_address(sock))
        credentials = Credentials(identity, derive_key(secret))
        if tls is not None:
            credentials = Credentials(identity, derive_key(secret), tls.client, tls.server, tls.certificate)
        server = TcpServer(sock, credentials, provider, serve_settings(config))
    except BaseException:
        sock.close()
        if device is not None:
            await device.close()
        raise
    dialler = TcpDialler(credentials, LinkSettings(connections=cluster.connections))
    dial: Dial = dialler.dial
    if device is not None:
        device.start()
        Responder(device, server)
        dial = RdmaDialler(dialler, device, demanded=cluster.transport == "rdma").dial
    return Endpoint(identity, server, Links(dial), device)


async def _device_for(config: Config, arena: SharedMemory) -> OpenDevice | None:
    """RDMA does not encrypt: where nodes speak TLS it is used only if the configuration says so by name."""
    cluster = config.cluster
    if cluster.transport == "auto" and cluster.tls_certificate:
        log.info("blocks go over TCP: RDMA has no TLS (cluster.tls_certificate)")
        return None
    host, _ = split_listen(cluster.advertise or cluster.listen, "cluster.listen")
    return await asyncio.to_thread(open_device, cluster.transport, arena, host)


def serve_settings(config: Config) -> ServeSettings:
    bytes_max = int(config.dram.capacity * config.limits.pin_share * SHARE_OF_A_LINK)
    return ServeSettings(LeaseLimits(LEASES_OF_A_LINK_MAX, bytes_max), config.limits.lease_max)
