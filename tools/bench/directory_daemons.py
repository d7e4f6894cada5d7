"""The parts of `mooncask bench directory` that want real daemons: what many announce, and what a question between two costs."""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from mooncask.tools.bench.daemon_process import DaemonProcess
from mooncask.tools.bench.directory_model import LOOKUP_KEYS
from mooncask.tools.bench.directory_server import Servers
from mooncask.tools.bench.peers import free_port

FAMILY = {"model": "bench", "block_tokens": "16"}
BLOCK_BYTES = 1024
PUT_BLOCKS = 256
SECONDS = 60.0
SMALL = {"dram_capacity": "32MiB", "http_enabled": "false", "ghosts_enabled": "false"}


@dataclass(frozen=True, slots=True)
class Daemons:
    """`rate`: blocks a second from the first put until the directory has all. `connections`: of one daemon to the directory."""

    rate: float
    connections: float


def measure_daemons(folder: Path, servers: Servers, count: int, blocks: int) -> Daemons:
    """`count` daemons with small arenas; each is given `blocks` small blocks, all by this process, one daemon after the other."""
    payload = bytes(BLOCK_BYTES)
    with ExitStack() as stack:
        clients = []
        for number in range(count):
            place = folder / f"daemon-{number}"
            place.mkdir()
            settings = {
                **SMALL,
                "node_name": f"bench-{number}",
                "cluster_listen": f"127.0.0.1:{free_port()}",
                "cluster_directory": servers.urls,
            }
            daemon = stack.enter_context(DaemonProcess(place, settings))
            clients.append(stack.enter_context(daemon.connect()))
        namespaces = [client.open_namespace("bench-directory", family=FAMILY, mode="memory") for client in clients]
        before, began = servers.keys(), time.perf_counter()
        for first in range(0, blocks, PUT_BLOCKS):
            for number, (client, namespace) in enumerate(zip(clients, namespaces, strict=True)):
                keys = [_key(number, i) for i in range(first, min(first + PUT_BLOCKS, blocks))]
                client.put(namespace, keys, [payload] * len(keys))
        _until_known(servers, before + count * blocks)
        return Daemons(count * blocks / (time.perf_counter() - began), servers.connections() / count)


def _until_known(servers: Servers, keys: int) -> None:
    """Records of daemons come and go, so some keys less or more are of them."""
    end = time.monotonic() + SECONDS
    while servers.keys() < keys:
        if time.monotonic() > end:
            raise RuntimeError(f"the directory has {servers.keys()} of {keys} keys after {SECONDS:.0f} s")
        time.sleep(0.01)


def have_cpu_seconds(folder: Path, rounds: int) -> float:
    """What one question of LOOKUP_KEYS keys costs the daemon that is asked, by a daemon that knows it by a list."""
    asked_address = f"127.0.0.1:{free_port()}"
    places = [folder / "asked", folder / "asking"]
    for place in places:
        place.mkdir()
    settings = [
        {**SMALL, "node_name": "asked", "cluster_listen": asked_address},
        {
            **SMALL,
            "node_name": "asking",
            "cluster_listen": f"127.0.0.1:{free_port()}",
            "cluster_peers": asked_address,
        },
    ]
    with (
        DaemonProcess(places[0], settings[0]) as asked,
        DaemonProcess(places[1], settings[1]) as asking,
        asked.connect() as holder,
        asking.connect() as client,
    ):
        for one in (holder, client):
            one.open_namespace("bench-directory", family=FAMILY, mode="memory")
        namespace = client.open_namespace("bench-directory", family=FAMILY, mode="memory")
        client.match(namespace, [_key(0, 0)])  # the link is made
        before = _cpu_seconds(asked.pid)
        for number in range(1, rounds + 1):
            client.match(namespace, [_key(number, i) for i in range(LOOKUP_KEYS)])
        return (_cpu_seconds(asked.pid) - before) / rounds


def _cpu_seconds(pid: int) -> float:
    """Of all threads of a process, to a microsecond or so: /proc/PID/stat counts in hundredths of a second."""
    total = 0
    for path in Path(f"/proc/{pid}/task").iterdir():
        total += int((path / "schedstat").read_text().split()[0])
    return total / 1e9


def _key(node: int, number: int) -> bytes:
    """Its last bytes spread over the shards of a directory."""
    return node.to_bytes(4, "big") + number.to_bytes(8, "big") + (number * 2654435761 % (1 << 32)).to_bytes(4, "little")
