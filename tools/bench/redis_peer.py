"""Valkey or Redis as a peer: its own server on a Unix socket, memory only, spoken to in bare RESP.

The client does as little as one can in Python: it sends payloads from where they are and receives them in place.
"""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mooncask.tools.bench.counterpart import receive_into
from mooncask.tools.bench.memory_limits import Bytes
from mooncask.tools.bench.peers import NotInstalled
from mooncask.tools.bench.plan import Plan

SERVERS = ("valkey-server", "redis-server")
START_SECONDS_MAX = 10.0


class RespPeer:
    """One connection. Not thread-safe."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = sock.makefile("rb", buffering=0)

    def use(self, memory: Sequence[Bytes]) -> None:
        """Any memory will do."""

    def put(self, keys: Sequence[str], blocks: Sequence[Bytes]) -> None:
        self._sock.sendall(b"*%d\r\n$4\r\nMSET\r\n" % (1 + 2 * len(keys)))
        for key, block in zip(keys, blocks, strict=True):
            self._sock.sendall(_bulk(key.encode()) + b"$%d\r\n" % block.nbytes)
            self._sock.sendall(block.data)
            self._sock.sendall(b"\r\n")
        self._expect(b"+OK")

    def get_into(self, keys: Sequence[str], targets: Sequence[Bytes]) -> None:
        self._sock.sendall(b"*%d\r\n$4\r\nMGET\r\n" % (1 + len(keys)) + b"".join(_bulk(key.encode()) for key in keys))
        self._expect(b"*%d" % len(keys))
        for target in targets:
            self._expect(b"$%d" % target.nbytes)
            receive_into(self._sock, target.data)
            self._expect(b"")

    def clear(self) -> None:
        self._sock.sendall(b"*1\r\n$8\r\nFLUSHALL\r\n")
        self._expect(b"+OK")

    def _expect(self, wanted: bytes) -> None:
        """Reads a line byte by byte, so that nothing of a payload after it is read too early."""
        line = bytearray()
        while not line.endswith(b"\r\n"):
            byte = self._reader.read(1)
            if not byte:
                raise EOFError("the server closed the connection")
            line += byte
        if line[:-2] != wanted:
            raise RuntimeError(f"answered {bytes(line[:80])!r}, expected {wanted!r}")


@contextmanager
def start_redis(folder: Path, plan: Plan) -> Iterator[RespPeer]:
    """A server in `folder` with the arena's memory. Raises NotInstalled."""
    program = next((found for name in SERVERS if (found := shutil.which(name))), None)
    if program is None:
        raise NotInstalled(f"none of {', '.join(SERVERS)} is in PATH; on Debian: apt-get install redis-server")
    path = folder / "redis.sock"
    options = {
        "port": "0",
        "unixsocket": str(path),
        "save": "",
        "appendonly": "no",
        "dir": str(folder),
        "maxmemory": str(plan.dram_bytes),
    }
    words = [word for key, value in options.items() for word in (f"--{key}", value)]
    server = subprocess.Popen([program, *words], stdout=subprocess.DEVNULL)
    try:
        with _connect(path, program, server) as sock:
            yield RespPeer(sock)
    finally:
        server.kill()
        server.wait()


def _connect(path: Path, program: str, server: subprocess.Popen[bytes]) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    end = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < end and server.poll() is None:
        try:
            sock.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.02)
        else:
            return sock
    sock.close()
    raise NotInstalled(f"{program} did not start")


def _bulk(text: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text)
