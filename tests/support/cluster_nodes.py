"""Several daemons that are one cluster, each a process of its own, with a client to each.

with ClusterNodes(tmp_path) as nodes:
    one, two = nodes.start("n1", "n2")
    one.put({key(1): payload(1)})
    assert two.get([key(1)]) == [payload(1)]
"""

import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

from daemon_process import DaemonProcess, Setting

from mooncask.client.control import Peers
from mooncask.client.control_client import ControlClient
from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle

FAMILY = {"model": "m", "block_tokens": "16"}
SECRET = "what the cluster knows"
SECONDS = 20.0


class Node:
    """One daemon and a connection to it."""

    def __init__(self, name: str, daemon: DaemonProcess, address: str) -> None:
        self.name, self.daemon, self.address = name, daemon, address
        self._client: LocalClient | None = None
        self._family: dict[str, str] | None = None
        self._handle: NamespaceHandle | None = None

    @property
    def client(self) -> LocalClient:
        if self._client is None:
            self._client = LocalClient.connect(self.daemon.socket_path)
        return self._client

    def namespace(self, family: dict[str, str] | None = None) -> NamespaceHandle:
        wanted = family or FAMILY
        if self._handle is None or self._family != wanted:
            self._family, self._handle = wanted, self.client.open_namespace("", wanted)
        return self._handle

    def put(self, blocks: Mapping[bytes, bytes], family: dict[str, str] | None = None) -> None:
        self.client.put(self.namespace(family), list(blocks), list(blocks.values()))

    def get(
        self, keys: Sequence[bytes], seconds: float = 5.0, family: dict[str, str] | None = None
    ) -> list[bytes | None]:
        """Bytes of each, None for a miss."""
        with self.client.acquire(self.namespace(family), keys, seconds) as blocks:
            return [None if block is None else bytes(block.memory) for block in blocks]

    def peers(self) -> Peers:
        with ControlClient(self.daemon.socket_path) as control:
            return control.peers()

    def counters(self) -> dict[str, int]:
        return self.client.status().counters

    def close_client(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = self._handle = None

    def restart(self) -> None:
        self.close_client()
        self.daemon.restart()


class ClusterNodes:
    """Nodes that know each other by a static list, or by a directory."""

    def __init__(self, folder: Path, settings: Mapping[str, Setting] | None = None, directory: str = "") -> None:
        self._folder = folder
        self._settings = dict(settings or {})
        self._directory = directory
        self.nodes: list[Node] = []

    def start(self, *names: str, **changed: Setting) -> list[Node]:
        """`changed`: keys of [cluster] that differ for these."""
        addresses = {name: self.address_for(name) for name in names}
        everybody = {**{node.name: node.address for node in self.nodes}, **addresses}
        made = []
        for name, address in addresses.items():
            others = [other for one, other in everybody.items() if one != name]
            settings: dict[str, Setting] = {
                "node.name": name,
                "cluster.listen": address,
                "cluster.secret": SECRET,
                "dram.capacity": "32 MiB",
                "http.listen": "127.0.0.1:0",
                **({"cluster.directory": self._directory} if self._directory else {"cluster.peers": others}),
                **self._settings,
                **{f"cluster.{key}": value for key, value in changed.items()},
            }
            folder = self._folder / name
            folder.mkdir()
            node = Node(name, self.daemon_for(name, folder, settings), address)
            self.nodes.append(node)
            made.append(node)
        return made

    def address_for(self, name: str) -> str:
        """Where it listens for other nodes."""
        return f"127.0.0.1:{free_port()}"

    def daemon_for(self, name: str, folder: Path, settings: Mapping[str, Setting]) -> DaemonProcess:
        return DaemonProcess.start(folder, settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.close_client()
            node.daemon.close()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def eventually(holds: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Polls until it does. Fails at the deadline."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


def blocks_of(numbers: Iterable[int], size: int = 64 << 10) -> dict[bytes, bytes]:
    """Keys with their bytes; no two blocks have the same."""
    return {number.to_bytes(16, "big"): (number.to_bytes(8, "little") * (size // 8 + 1))[:size] for number in numbers}
