"""One data connection on the side that serves: a thread that sends from held blocks.

Blocking sockets, so that a peer that reads slowly keeps nobody else waiting, and copies by `sendmsg` only: the kernel has the
bytes when it returns. sendfile, splice and MSG_ZEROCOPY would read the memory later, when it may be another block's.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Protocol

from mooncask.daemon.transport import authentication as auth
from mooncask.daemon.transport.messages import BYTES_FOLLOW, HEADER, frame_length, parse_read, refused_read
from mooncask.daemon.transport.served_leases import ServedLeases
from mooncask.daemon.transport.tcp.handshake import Credentials, ServerSide, admit_blocking, receive_all
from mooncask.errors import BadRequest, MooncaskError

log = logging.getLogger(__name__)

VIEWS_AT_A_TIME = 64


class Owner(Protocol):
    """The link that a data connection belongs to, as the connection's thread sees it."""

    leases: ServedLeases

    def attach(self, sender: "Sender") -> None:
        """Raises MooncaskError when the link has ended or has connections enough."""
        ...

    def sent(self, size_bytes: int) -> None: ...


class Sender:
    """Starts its thread at once; `on_ended(sender)` comes in the loop's thread when it is over."""

    def __init__(
        self,
        sock: socket.socket,
        side: ServerSide,
        credentials: Credentials,
        handshake_seconds: float,
        find_owner: Callable[[auth.Introduction], Owner],
        on_ended: "Callable[[Sender], None]",
    ) -> None:
        self._sock = sock
        self._side = side
        self._credentials = credentials
        self._handshake_seconds = handshake_seconds
        self._find_owner = find_owner
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._over = False
        self.admitted = False
        """Whether it is a peer's: until then it counts as a handshake."""
        self._thread = threading.Thread(target=self._run, name="mooncask-to-peer", daemon=True)
        self._thread.start()

    # --- any thread ---

    def interrupt(self) -> None:
        """Whatever it does ends with an error: a send that waits as well. Idempotent."""
        with self._lock:
            if not self._over:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def join(self) -> None:
        """Returns at once after `on_ended`."""
        self._thread.join()

    # --- its own ---

    def _run(self) -> None:
        try:
            owner = self._admit()
            while True:
                self._serve(owner, receive_all(self._sock, frame_length(receive_all(self._sock, HEADER.size))))
        except MooncaskError as error:
            log.info("a data connection was ended: %s", error.message)
        except (OSError, ValueError, EOFError) as error:
            log.debug("a data connection has ended: %s", error)
        finally:
            with self._lock:
                self._over = True
                self._sock.close()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is there to be told
                self._loop.call_soon_threadsafe(self._on_ended, self)

    def _admit(self) -> Owner:
        self._sock.settimeout(self._handshake_seconds)
        context = self._credentials.server_tls
        if context is not None:
            with self._lock:
                tls: ssl.SSLSocket = context.wrap_socket(self._sock, server_side=True, do_handshake_on_connect=False)
                self._sock = tls
            tls.do_handshake()
        owners: list[Owner] = []
        admit_blocking(self._side, self._sock, lambda found: owners.append(self._attached(found)))
        self._sock.settimeout(None)
        self.admitted = True
        return owners[0]

    def _attached(self, found: auth.Introduction) -> Owner:
        owner = self._find_owner(found)
        owner.attach(self)
        return owner

    def _serve(self, owner: Owner, body: bytes) -> None:
        """Answers one read. Raises BadRequest for what is none: the connection is useless then."""
        read = parse_read(body)
        try:
            sending = owner.leases.begin(read)
        except MooncaskError as error:
            self._sock.sendall(refused_read(error))
            return
        try:
            self._send([memoryview(BYTES_FOLLOW), *sending.views])
        finally:
            sending.end()
        owner.sent(sum(read.lengths))

    def _send(self, views: list[memoryview]) -> None:
        if isinstance(self._sock, ssl.SSLSocket):
            for view in views:
                self._sock.sendall(view)
            return
        first, skip = 0, 0
        while first < len(views):
            batch = views[first : first + VIEWS_AT_A_TIME]
            batch[0] = batch[0][skip:]
            skip += self._sock.sendmsg(batch)
            while first < len(views) and skip >= len(views[first]):
                skip -= len(views[first])
                first += 1


def check_data(side: ServerSide) -> None:
    """Raises BadRequest for a purpose that is none."""
    if side.client.purpose not in (auth.CONTROL, auth.DATA):
        raise BadRequest(f"a connection for purpose {side.client.purpose}; 1 and 2 are known")
