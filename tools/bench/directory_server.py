"""Valkey or Redis for `mooncask bench directory`: one server, or three that are a Cluster, in memory only and on loopback."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mooncask.tools.bench.peers import NotInstalled, free_port
from mooncask.tools.bench.redis_peer import SERVERS

SECONDS = 30.0
SLOTS = 16384
CLUSTER_SERVERS = 3
_BUS = 10_000
"""So much above its port a member of a Cluster listens for the others."""


class Server:
    """One, with a connection for questions."""

    def __init__(self, folder: Path, program: str, *options: str) -> None:
        self.port = _port()
        self.url = f"redis://127.0.0.1:{self.port}"
        words = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [program, *words, "--dir", str(folder), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._sock: socket.socket | None = None

    def ask(self, *words: str) -> str:
        """Its answer to a command that answers in text."""
        if self._sock is None:
            self._sock = self._connected()
        request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        self._sock.sendall(request.encode())
        with self._sock.makefile("rb") as reader:
            head = reader.readline()
            if head[:1] == b"$":
                return reader.read(int(head[1:]) + 2).decode()
        return head.decode().strip()

    def info(self, section: str) -> dict[str, str]:
        """Of INFO, by name."""
        pairs = (line.partition(":") for line in self.ask("INFO", section).splitlines())
        return {name: value for name, _, value in pairs}

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._process.kill()
        self._process.wait()

    def _connected(self) -> socket.socket:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            try:
                return socket.create_connection(("127.0.0.1", self.port), SECONDS)
            except ConnectionRefusedError:
                time.sleep(0.02)
        raise NotInstalled(f"the directory's server did not start ({self._process.poll()})")


class Servers:
    """What the bench asks of a directory as a whole: sums over its servers."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = servers

    @property
    def urls(self) -> str:
        return ",".join(server.url for server in self.servers)

    def figure(self, section: str, *names: str) -> float:
        """Of INFO; several names are added up."""
        total = 0.0
        for server in self.servers:
            lines = server.info(section)
            total += sum(float(lines[name]) for name in names)
        return total

    def keys(self) -> int:
        return sum(int(server.ask("DBSIZE")[1:]) for server in self.servers)

    def cpu_seconds(self) -> float:
        return self.figure("cpu", "used_cpu_user", "used_cpu_sys")

    def memory_bytes(self) -> float:
        return self.figure("memory", "used_memory")

    def connections(self) -> float:
        return self.figure("clients", "connected_clients") - len(self.servers)

    def calls(self, command: str) -> int:
        """How often it was carried out so far."""
        name, total = f"cmdstat_{command}", 0
        for server in self.servers:
            said = server.info("commandstats").get(name, "calls=0")
            total += int(said.partition("calls=")[2].partition(",")[0])
        return total

    def network_bytes(self) -> float:
        return self.figure("stats", "total_net_input_bytes", "total_net_output_bytes")


@contextmanager
def directory_servers(folder: Path, cluster: bool) -> Iterator[Servers]:
    """In `folder`, which is its own. Raises NotInstalled."""
    program = next((found for name in SERVERS if (found := shutil.which(name))), None)
    if program is None:
        raise NotInstalled(f"none of {', '.join(SERVERS)} is in PATH; on Debian: apt-get install redis-server")
    with ExitStack() as stack:
        servers = []
        for number in range(CLUSTER_SERVERS if cluster else 1):
            options = ("--cluster-enabled", "yes", "--cluster-config-file", f"c{number}") if cluster else ()
            servers.append(Server(folder, program, *options))
            stack.callback(servers[-1].close)
        if cluster:
            _join(servers)
        for server in servers:
            server.ask("PING")
        yield Servers(servers)


def _join(servers: Sequence[Server]) -> None:
    bounds = [SLOTS * number // len(servers) for number in range(len(servers) + 1)]
    for server, first, end in zip(servers, bounds, bounds[1:], strict=False):
        server.ask("CLUSTER", "ADDSLOTSRANGE", str(first), str(end - 1))
    for server in servers[1:]:
        servers[0].ask("CLUSTER", "MEET", "127.0.0.1", str(server.port))
    end_seconds = time.monotonic() + SECONDS
    while not all("cluster_state:ok" in server.ask("CLUSTER", "INFO") for server in servers):
        if time.monotonic() > end_seconds:
            raise NotInstalled("three servers did not become a Cluster")
        time.sleep(0.05)


def _port() -> int:
    """Below the ports that systems hand out by themselves, with room for the bus above."""
    while True:
        port = free_port() % 12_000 + 10_000
        try:
            for number in (port, port + _BUS):
                with socket.socket() as sock:
                    sock.bind(("127.0.0.1", number))
        except OSError:
            continue
        return port
