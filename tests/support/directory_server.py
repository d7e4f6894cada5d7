"""A real redis-server (or valkey-server) on loopback, for tests of the directory: started, frozen, emptied, killed, started anew."""

import binascii
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from network_places import Place

SECONDS = 10.0
START_SECONDS_MAX = 60.0
SLOTS = 16384
BOUNDS = (0, 5461, 10923, SLOTS)


def server_program() -> str:
    """Skips the test where none is installed."""
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        pytest.skip("neither valkey-server nor redis-server is installed")
    return found


def _free_port() -> int:
    """A member of a Cluster also listens 10,000 above; both below the ports that the system gives to connections."""
    for _ in range(100):
        port = random.randrange(11_000, 22_000)
        with socket.socket() as sock, socket.socket() as bus:
            try:
                sock.bind(("127.0.0.1", port))
                bus.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is free")


class DirectoryServer:
    """Keeps nothing on disk: after a restart it is empty. `url` stays the same.

    `place`: where it runs if not here; commands then go through a Unix socket.
    """

    def __init__(self, folder: Path, *options: str, place: Place | None = None) -> None:
        self._program = server_program()
        self._folder = folder
        self._options = options
        self._place = place
        self.port = _free_port()
        self._address = place.address if place is not None else "127.0.0.1"
        self._socket_path = folder / f"directory-{self.port}.sock"
        self.url = f"redis://{self._address}:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        arguments = ["--port", str(self.port), "--bind", self._address, "--save", "", "--appendonly", "no"]
        prefix: tuple[str, ...] = ()
        if self._place is not None:
            prefix = self._place.prefix
            arguments += ["--unixsocket", str(self._socket_path), "--protected-mode", "no"]
        with (self._folder / f"directory-{self.port}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*prefix, self._program, *arguments, "--dir", str(self._folder), *self._options], stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while self.command("PING") != b"+PONG":
            ended = self.process.poll() if self.process is not None else None
            assert time.monotonic() < deadline and ended is None, f"the directory's server did not come up ({ended})"
            time.sleep(0.02)

    def command(self, *words: str) -> bytes:
        """The first line of its answer; empty when nobody answers."""
        request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        try:
            with self._connect() as sock:
                sock.sendall(request.encode())
                return sock.recv(1 << 16).split(b"\r\n")[0]
        except OSError:
            return b""

    def command_text(self, *words: str) -> str:
        """Its answer, where that is one text."""
        request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        with self._connect() as sock, sock.makefile("rb") as reader:
            sock.sendall(request.encode())
            return reader.read(int(reader.readline()[1:])).decode()

    def _connect(self) -> socket.socket:
        if self._place is None:
            return socket.create_connection((self._address, self.port), SECONDS)
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(SECONDS)
            sock.connect(str(self._socket_path))
        except BaseException:
            sock.close()
            raise
        return sock

    def flush(self) -> None:
        assert self.command("FLUSHALL") == b"+OK"

    def keys(self) -> int:
        return int(self.command("DBSIZE")[1:])

    def cluster_is_whole(self) -> bool:
        """Whether this member of a Cluster knows who has each slot."""
        with self._connect() as sock:
            sock.sendall(b"*2\r\n$7\r\nCLUSTER\r\n$4\r\nINFO\r\n")
            return b"cluster_state:ok" in sock.recv(1 << 16)

    def freeze(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class DirectoryCluster:
    """Three servers that are one Cluster, a third of the slots each. `whole`: it answers nothing while one of them is gone (the
    servers' own default). `replicas`: one more server for each, that takes its place.
    """

    def __init__(self, folder: Path, whole: bool = True, replicas: bool = False) -> None:
        made = [DirectoryServer(folder, *_cluster_options(number, whole)) for number in range(6 if replicas else 3)]
        self.servers, self.replicas = made[:3], made[3:]

    @property
    def url(self) -> str:
        return ",".join(server.url for server in self.servers)

    def __enter__(self) -> Self:
        try:
            self._join()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in (*self.servers, *self.replicas):
            server.kill()

    def with_nodes(self) -> DirectoryServer:
        """The member that has the records of the nodes."""
        number = binascii.crc_hqx(b"mooncask", 0) % SLOTS
        return next(server for server, end in zip(self.servers, BOUNDS[1:], strict=True) if number < end)

    def _join(self) -> None:
        for server, first, end in zip(self.servers, BOUNDS, BOUNDS[1:], strict=False):
            server.start()
            assert server.command("CLUSTER", "ADDSLOTSRANGE", str(first), str(end - 1)) == b"+OK"
        for server in self.servers[1:]:
            self.servers[0].command("CLUSTER", "MEET", "127.0.0.1", str(server.port))
        deadline = time.monotonic() + 3 * SECONDS
        while not all(server.cluster_is_whole() for server in self.servers):
            assert time.monotonic() < deadline, "the servers did not become a Cluster"
            time.sleep(0.05)
        for server, replica in zip(self.servers, self.replicas, strict=False):
            self._follow(server, replica)

    def _follow(self, server: DirectoryServer, replica: DirectoryServer) -> None:
        replica.start()
        name = server.command_text("CLUSTER", "MYID")
        replica.command("CLUSTER", "MEET", "127.0.0.1", str(server.port))
        deadline = time.monotonic() + 3 * SECONDS
        while replica.command("CLUSTER", "REPLICATE", name) != b"+OK":
            assert time.monotonic() < deadline, "a server did not become a replica"
            time.sleep(0.05)
        while "master_link_status:up" not in replica.command_text("INFO", "replication"):
            assert time.monotonic() < deadline, "a replica did not catch up"
            time.sleep(0.05)


def _cluster_options(number: int, whole: bool) -> tuple[str, ...]:
    options = {
        "enabled": "yes",
        "config-file": f"cluster-{number}.conf",
        "node-timeout": "2000",
        "require-full-coverage": "yes" if whole else "no",
    }
    return tuple(word for name, value in options.items() for word in (f"--cluster-{name}", value))
