"""The other end of a bare socket, in a process of its own: what a call or a byte stream costs without a store.

Run as `python -m mooncask.tools.bench.counterpart FD`. The parent sends (operation, bytes): ECHO answers one byte, SEND
answers that many bytes, TAKE reads that many and answers one byte. SEND_MEMORY answers that many from as much shared memory,
where SEND sends the same chunk, which is in the processor's cache, again and again.
"""

import socket
import struct
import subprocess
import sys
from types import TracebackType
from typing import Self

from mooncask.tools.bench.memory_limits import shared_memory

REQUEST = struct.Struct("<BQ")
ECHO, SEND, TAKE, SEND_MEMORY = 0, 1, 2, 3
CHUNK_BYTES = 1 << 20


class Counterpart:
    """A child process behind a connected socket; close it, or use it as a context manager. Not thread-safe."""

    def __init__(self, sock: socket.socket, theirs: socket.socket) -> None:
        self._sock = sock
        self._child = subprocess.Popen(
            [sys.executable, "-m", "mooncask.tools.bench.counterpart", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self.echo()  # its start is nobody's round

    @classmethod
    def over_unix(cls) -> Self:
        return cls(*socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))

    @classmethod
    def over_tcp(cls) -> Self:
        """Both ends on loopback, without Nagle's delay."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            ours = socket.create_connection(server.getsockname())
            theirs, _ = server.accept()
        for end in (ours, theirs):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(ours, theirs)

    def echo(self) -> None:
        self._sock.sendall(REQUEST.pack(ECHO, 0))
        receive_into(self._sock, memoryview(bytearray(1)))

    def read_into(self, target: memoryview) -> None:
        self._sock.sendall(REQUEST.pack(SEND, target.nbytes))
        receive_into(self._sock, target)

    def read_memory_into(self, target: memoryview) -> None:
        """As `read_into`, from memory that no cache holds if it is large enough."""
        self._sock.sendall(REQUEST.pack(SEND_MEMORY, target.nbytes))
        receive_into(self._sock, target)

    def write(self, source: memoryview) -> None:
        self._sock.sendall(REQUEST.pack(TAKE, source.nbytes))
        self._sock.sendall(source)
        receive_into(self._sock, memoryview(bytearray(1)))

    def close(self) -> None:
        self._sock.close()
        self._child.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def receive_into(sock: socket.socket, target: memoryview) -> None:
    """Fills `target`. Raises EOFError when the other end closes before."""
    while target.nbytes:
        count = sock.recv_into(target)
        if count == 0:
            raise EOFError("the other end closed")
        target = target[count:]


def serve(sock: socket.socket) -> None:
    """Answers until the parent closes."""
    chunk, request = memoryview(bytearray(CHUNK_BYTES)), memoryview(bytearray(REQUEST.size))
    memory = shared_memory(CHUNK_BYTES)
    while True:
        receive_into(sock, request)
        operation, left = REQUEST.unpack(request)
        if operation == SEND_MEMORY:
            if memory.size != left:
                memory = shared_memory(left)
            sock.sendall(memory.data)
            continue
        while left:
            part = chunk[: min(left, CHUNK_BYTES)]
            sock.sendall(part) if operation == SEND else receive_into(sock, part)
            left -= part.nbytes
        if operation != SEND:
            sock.sendall(b"!")


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        try:
            serve(sock)
        except (EOFError, ConnectionError):
            return


if __name__ == "__main__":
    main()
