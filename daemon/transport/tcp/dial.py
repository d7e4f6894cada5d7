"""Makes a link: name looked up, connected, preambles, TLS, handshake; each attempt within its own time."""

import asyncio
import contextlib
import socket
import ssl

from mooncask.daemon.transport import authentication as auth
from mooncask.daemon.transport.tcp.channel import Channel
from mooncask.daemon.transport.tcp.handshake import ClientSide, Credentials, Met, greet, receive_exactly
from mooncask.daemon.transport.tcp.lane import Destination
from mooncask.daemon.transport.tcp.link import TcpLink
from mooncask.daemon.transport.tcp.settings import LinkSettings
from mooncask.daemon.transport.transport import PeerInfo
from mooncask.errors import AccessDenied, PeerUnavailable

STREAM_BYTES = 1 << 20


class TcpDialler:
    """Dials peers with this node's credentials. Any number of tasks may use it."""

    def __init__(self, credentials: Credentials, settings: LinkSettings) -> None:
        self._credentials = credentials
        self._settings = settings

    async def dial(self, host: str, port: int) -> TcpLink:
        """Raises PeerUnavailable, ProtocolMismatch, AccessDenied, BadRequest."""
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            async with asyncio.timeout(self._settings.connect_seconds):
                return await self._dial(name, host, port)
        except TimeoutError:
            why = f"no answer within {self._settings.connect_seconds:g} s"
            raise PeerUnavailable(name, why) from None
        except ssl.SSLError as error:
            raise AccessDenied(
                f"peer {name}: TLS: {error.reason or error}; see cluster.tls_ca on both nodes"
            ) from error
        except (OSError, EOFError) as error:
            raise PeerUnavailable(
                name, getattr(error, "strerror", None) or str(error) or "cannot be reached"
            ) from error

    async def _dial(self, name: str, host: str, port: int) -> TcpLink:
        sock = await _connect(host, port)
        try:
            where = (sock.family, tuple(sock.getpeername()))
            side = ClientSide(self._credentials, auth.CONTROL, name)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(sock, side.preamble())
            side.preamble_came(await receive_exactly(loop, sock, auth.PREAMBLE_BYTES))
            reader, writer = await _streams(sock, self._credentials.client_tls)
        except BaseException:
            sock.close()
            raise
        try:
            met = await greet(side, reader, writer)
            self._check(name, met)
        except BaseException:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            raise
        found = met.introduction
        peer = PeerInfo(found.name, found.incarnation, name, self._credentials.transport)
        destination = Destination(*where, peer, met.token, self._credentials)
        return TcpLink(Channel(reader, writer, found.name), destination, self._settings)

    def _check(self, name: str, met: Met) -> None:
        if met.introduction.incarnation == self._credentials.identity.incarnation:
            raise PeerUnavailable(name, "is this node itself")


async def _connect(host: str, port: int) -> socket.socket:
    """The first of the name's addresses that answers."""
    loop = asyncio.get_running_loop()
    failure = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address)
            return sock
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
    raise failure


async def _streams(
    sock: socket.socket, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(sock=sock, ssl=tls, server_hostname="" if tls else None, limit=STREAM_BYTES)
