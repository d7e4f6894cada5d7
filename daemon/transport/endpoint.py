"""This node's end of all links, made of the configuration: the listener for others, and the pool of links to them."""

import asyncio
from dataclasses import dataclass

from mooncask.daemon.config import Config
from mooncask.daemon.http.credentials import secret_of_file
from mooncask.daemon.transport.authentication import derive_key
from mooncask.daemon.transport.pool import Links
from mooncask.daemon.transport.served_leases import LeaseLimits
from mooncask.daemon.transport.tcp.dial import TcpDialler
from mooncask.daemon.transport.tcp.handshake import Credentials
from mooncask.daemon.transport.tcp.server import TcpServer, bind_listener, bound_address
from mooncask.daemon.transport.tcp.settings import LinkSettings, ServeSettings
from mooncask.daemon.transport.tcp.tls import peer_tls
from mooncask.daemon.transport.transport import BlockProvider, LinkPool, NodeIdentity, PeerServer

LEASES_OF_A_LINK_MAX = 8192
SHARE_OF_A_LINK = 0.25
"""Of the DRAM that may be held at all, what the leases of one link may hold."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    identity: NodeIdentity
    server: PeerServer
    pool: LinkPool

    async def close(self) -> None:
        """Links to others first: what their threads receive into belongs to the store."""
        await self.pool.close()
        await self.server.close()


async def open_endpoint(config: Config, incarnation: bytes, provider: BlockProvider) -> Endpoint:
    """Listening on cluster.listen, with this run's incarnation. Raises ConfigError and AddressInUse."""
    cluster = config.cluster
    secret = cluster.secret
    if cluster.secret_file:
        secret = await asyncio.to_thread(secret_of_file, "cluster.secret_file", cluster.secret_file)
    tls = await asyncio.to_thread(peer_tls, cluster)
    sock = await asyncio.to_thread(bind_listener, cluster.listen)
    try:
        identity = NodeIdentity(config.node.name, incarnation, cluster.advertise or bound_address(sock))
        credentials = Credentials(identity, derive_key(secret))
        if tls is not None:
            credentials = Credentials(identity, derive_key(secret), tls.client, tls.server, tls.certificate)
        server = TcpServer(sock, credentials, provider, serve_settings(config))
    except BaseException:
        sock.close()
        raise
    dialler = TcpDialler(credentials, LinkSettings(connections=cluster.connections))
    return Endpoint(identity, server, Links(dialler.dial))


def serve_settings(config: Config) -> ServeSettings:
    bytes_max = int(config.dram.capacity * config.limits.pin_share * SHARE_OF_A_LINK)
    return ServeSettings(LeaseLimits(LEASES_OF_A_LINK_MAX, bytes_max), config.limits.lease_max)
