"""The listener for other nodes: who comes in, whose link is whose, and what ends links that must end."""

import asyncio
import errno
import logging
import secrets
import socket
import time

from mooncask.daemon.config_source import split_listen
from mooncask.daemon.leases import Ids
from mooncask.daemon.transport import authentication as auth
from mooncask.daemon.transport.tcp.channel import Channel
from mooncask.daemon.transport.tcp.dial import STREAM_BYTES
from mooncask.daemon.transport.tcp.handshake import Credentials, ServerSide, admit, receive_exactly
from mooncask.daemon.transport.tcp.sender import Sender, check_data
from mooncask.daemon.transport.tcp.served_link import LinkHandler, ServedLink
from mooncask.daemon.transport.tcp.settings import ServeSettings
from mooncask.daemon.transport.transport import BlockProvider, Handler, PeerInfo
from mooncask.errors import AccessDenied, AddressInUse, Busy, ConfigError, MooncaskError, PeerUnavailable

log = logging.getLogger(__name__)

BACKLOG = 128
CHECK_SECONDS = 1.0
NO_DESCRIPTORS_SECONDS = 0.5


def bind_listener(listen: str) -> socket.socket:
    """Bound to cluster.listen, not yet listening: its port is known. Raises AddressInUse and ConfigError."""
    host, port = split_listen(listen, "cluster.listen")
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError("cluster.listen", listen, f"cannot be listened on: {error.strerror}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse("cluster.listen", listen) from error
        raise ConfigError("cluster.listen", listen, f"cannot be listened on: {error.strerror}") from error
    return sock


def bound_address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class TcpServer:
    """See `transport.PeerServer`. Owns the listener, the links that came in, and their threads."""

    def __init__(
        self, sock: socket.socket, credentials: Credentials, provider: BlockProvider, settings: ServeSettings
    ) -> None:
        self._sock = sock
        self._credentials = credentials
        self._provider = provider
        self._settings = settings
        self._handlers: dict[str, Handler] = {}
        self._link_handlers: dict[str, LinkHandler] = {}
        self._numbers = Ids(secrets.randbits(62) + 1)
        self._links: dict[bytes, ServedLink] = {}
        self._guests: set[asyncio.Task[None]] = set()
        self._handshakes = 0
        self._senders: set[Sender] = set()
        self._senders_gone = asyncio.Event()
        self._senders_gone.set()
        self._closed = False
        sock.listen(BACKLOG)
        sock.setblocking(False)
        self._tasks = [asyncio.create_task(self._accept()), asyncio.create_task(self._check())]

    @property
    def address(self) -> str:
        return bound_address(self._sock)

    def handle(self, kind: str, handler: Handler) -> None:
        assert kind not in self._handlers, f"{kind} has a handler already"
        self._handlers[kind] = handler

    def handle_link(self, kind: str, handler: LinkHandler) -> None:
        """As `handle`, with the link that asks."""
        self._link_handlers[kind] = handler

    def links(self) -> list[ServedLink]:
        """Those that other nodes have to this one."""
        return list(self._links.values())

    async def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        for link in self.links():
            link.end("this node stops")
        for sender in self._senders:
            sender.interrupt()
        for guest in self._guests:
            guest.cancel()
        await asyncio.gather(*self._tasks, *self._guests, return_exceptions=True)
        await self._senders_gone.wait()
        self._sock.close()

    # --- who comes in ---

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._sock)
            except OSError as error:
                log.warning("cluster.listen: %s", error.strerror)
                await asyncio.sleep(NO_DESCRIPTORS_SECONDS)
                continue
            if self._handshakes >= self._settings.handshakes_max:
                sock.close()
                continue
            self._handshakes += 1
            guest = asyncio.create_task(self._receive_guest(sock))
            self._guests.add(guest)
            guest.add_done_callback(self._guests.discard)

    async def _receive_guest(self, sock: socket.socket) -> None:
        """The top of a connection's task."""
        link: ServedLink | None = None
        try:
            async with asyncio.timeout(self._settings.handshake_seconds):
                link = await self._meet(sock)
        except MooncaskError as error:
            log.warning("a connection to cluster.listen was refused: %s", error.message)
        except (OSError, EOFError, TimeoutError) as error:
            log.info("a connection to cluster.listen ended in the handshake: %s", error or type(error).__name__)
        finally:
            self._handshakes -= 1
        if link is not None:
            await self._serve(link)

    async def _meet(self, sock: socket.socket) -> ServedLink | None:
        """A link, for a control connection; a data connection goes on in a thread."""
        loop = asyncio.get_running_loop()
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            side = ServerSide(self._credentials, await receive_exactly(loop, sock, auth.PREAMBLE_BYTES))
            await loop.sock_sendall(sock, side.preamble())
            side.check()
            check_data(side)
            if side.client.purpose == auth.DATA:
                self._start_sender(sock, side)
                return None
            reader, writer = await self._streams(sock)
        except BaseException:
            sock.close()
            raise
        token = secrets.token_bytes(auth.TOKEN_BYTES)
        try:
            met = await admit(side, reader, writer, token, self._judge)
        except BaseException:
            writer.close()
            raise
        found = met.introduction
        peer = PeerInfo(found.name, found.incarnation, found.address, self._credentials.transport)
        channel = Channel(reader, writer, found.name)
        link = ServedLink(
            peer, channel, self._provider, self._handlers, self._link_handlers, self._numbers, self._settings
        )
        self._links[token] = link
        return link

    async def _streams(self, sock: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=STREAM_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock, ssl=self._credentials.server_tls)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _judge(self, found: auth.Introduction) -> None:
        """A peer that knows the secret: what of it is here already, and is there room? Raises MooncaskError."""
        if found.incarnation == self._credentials.identity.incarnation:
            raise AccessDenied("a node needs no link to itself")
        if len(self._links) >= self._settings.links_max:
            raise Busy(f"this node has {len(self._links)} links already")
        same = [link for link in self.links() if link.peer.name == found.name]
        for link in same:
            if link.peer.incarnation != found.incarnation:
                link.end(f"node {found.name} was started anew")
        kept = [link for link in same if link.peer.incarnation == found.incarnation]
        for link in kept[: max(0, len(kept) + 1 - self._settings.links_of_a_peer_max)]:
            link.end("the peer has made newer links")

    async def _serve(self, link: ServedLink) -> None:
        log.info("peer %s at %s has linked over %s", link.peer.name, link.peer.address, link.peer.transport)
        try:
            await link.run()
        finally:
            self._links = {token: one for token, one in self._links.items() if one is not link}
            log.info("the link of peer %s has ended: %s", link.peer.name, link.problem)

    # --- data connections ---

    def _start_sender(self, sock: socket.socket, side: ServerSide) -> None:
        if self._closed:
            raise PeerUnavailable(self._credentials.identity.name, "stops")
        strangers = sum(not sender.admitted for sender in self._senders)
        if strangers >= self._settings.handshakes_max:
            raise Busy(f"{strangers} data connections are in their handshake")
        sender = Sender(
            sock, side, self._credentials, self._settings.handshake_seconds, self._find_link, self._sender_ended
        )
        self._senders.add(sender)
        self._senders_gone.clear()

    def _find_link(self, found: auth.Introduction) -> ServedLink:
        """In a sender's thread. Raises AccessDenied."""
        link = self._links.get(found.token)
        if link is None or link.peer.incarnation != found.incarnation:
            raise AccessDenied("this data connection belongs to no link here; the link may have ended")
        return link

    def _sender_ended(self, sender: Sender) -> None:
        sender.join()
        self._senders.discard(sender)
        for link in self._links.values():
            link.detach(sender)
        if not self._senders:
            self._senders_gone.set()

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            for link in self.links():
                link.check(time.monotonic())
