"""All that serves a model in more than one piece: two nodes that find each other by a directory, a prefill and a decode worker on
each, and two Conductors on one state. Every piece can be killed, frozen and started anew on its address."""

import asyncio
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from conductor_process import ConductorProcess
from daemon_process import DaemonProcess
from directory_server import DirectoryServer
from served_pool import OPTIONS, READY_SECONDS, SETTINGS, free_ports, start_conductor, until
from tiny_model import write_tiny_llama
from tiny_tokenizer import write_tiny_tokenizer
from worker_server import SECRET, WorkerServerProcess

from mooncask.client.socket_path import http_socket_path
from mooncask.conductor.serving.billing.lines import CallLine, decode_line
from mooncask.conductor.serving.state.opening import opened_state
from mooncask.conductor.serving.tenants.quotas import Limits, Windows
from mooncask.conductor.serving.tenants.shared_quotas import TABLE

NODES = ("n1", "n2")
WORKERS = {"prefill-1": "n1", "decode-1": "n1", "prefill-2": "n2", "decode-2": "n2"}
DOORS = ("first", "second")
PREFIX = "torture"
TOKENS_PER_DAY = 1_000_000_000
MORE_SETTINGS = """
[state]
url = "{state}"
prefix = "{prefix}"
[tenancy]
salt_secret = "what tenants are kept apart with"
"""
TENANT = """
[keys.{name}]
key = "sk-{name}"
tenant = "{name}"
[tenants.{name}]
tokens_per_day = {tokens}
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One call in the metering log."""

    request: str
    at: float
    line: CallLine


@dataclass
class TorturePool:
    """What is up; a killed piece is started anew by the method of its kind."""

    folder: Path
    model_folder: Path
    tenants: list[str]
    directory: DirectoryServer
    state: DirectoryServer
    stack: contextlib.ExitStack
    ports: list[int] = field(default_factory=lambda: free_ports(6))
    daemons: dict[str, DaemonProcess] = field(default_factory=dict)
    conductors: dict[str, ConductorProcess] = field(default_factory=dict)
    workers: dict[str, WorkerServerProcess] = field(default_factory=dict)

    def start(self) -> None:
        """All at once: most of a start is importing."""
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(self.start_daemon, NODES))
            started = [threads.submit(self.start_conductor, door) for door in DOORS]
            started += [threads.submit(self.start_worker, name) for name in WORKERS]
            for one in started:
                one.result()
        self.wait_until_whole()

    def start_daemon(self, node: str) -> None:
        folder = self.folder / node
        folder.mkdir()
        settings = {
            "node.name": node,
            "cluster.listen": f"127.0.0.1:{self.ports[NODES.index(node)]}",
            "cluster.secret": "what the nodes know",
            "cluster.directory": self.directory.url,
            "cluster.ttl": "3s",
            "dram.capacity": "16 MiB",
        }
        self.daemons[node] = DaemonProcess.start(folder, settings)
        self.stack.callback(self.daemons[node].close)

    def start_conductor(self, door: str) -> None:
        settings = SETTINGS.format(secret=SECRET, model=self.model_folder)
        settings += MORE_SETTINGS.format(state=self.state.url + "/1", prefix=PREFIX)
        settings += "".join(TENANT.format(name=name, tokens=TOKENS_PER_DAY) for name in self.tenants)
        ports = self.ports[2:4] if door == DOORS[0] else self.ports[4:6]
        start = start_conductor(self.folder / door, self.model_folder, ports, settings)
        self.conductors[door] = self.stack.enter_context(start)

    def start_worker(self, name: str) -> None:
        daemon = self.daemons[WORKERS[name]]
        options = {
            **OPTIONS,
            "conductor": " ".join(f"http://127.0.0.1:{port}" for port in self.ports[3::2]),
            "node": WORKERS[name],
            "node_pages": f"unix:{http_socket_path(daemon.socket_path)}",
            "model_name": "tiny",
        }
        start = WorkerServerProcess.start(
            self.folder, name, name.partition("-")[0], self.model_folder, daemon.socket_path, **options
        )
        self.workers[name] = self.stack.enter_context(start)

    # --- questions ---

    def wait_until_whole(self) -> None:
        """Every worker takes requests of every Conductor."""
        until(lambda: all(self._serves(door) for door in DOORS), "the workers did not register", READY_SECONDS)

    def _serves(self, door: str) -> bool:
        try:
            pools = self.page(door, "pools")["pools"]
        except requests.RequestException:
            return False
        return {row["name"] for pool in pools for row in pool["workers"] if not row["draining"]} == set(WORKERS)

    def page(self, door: str, name: str) -> Any:
        answer = requests.get(f"{self.conductors[door].url}/-/v1/{name}", timeout=5)
        answer.raise_for_status()
        return answer.json()

    def idle(self) -> bool:
        """No worker has a request."""
        return not any(worker.state().report.requests for worker in self.workers.values())

    def counted_alone_and_was_killed(self) -> bool:
        """A Conductor for which the state was too slow, as on a machine that stands still: what it had booked by itself went with
        it."""
        killed = (log.read_text() for door in DOORS for log in (self.folder / door).glob("conductor-*.log"))
        return any("counted here alone" in told for told in killed)

    def rows(self, tenant: str) -> list[Row]:
        """What is billed to it, in the order of time."""

        async def read() -> list[Row]:
            async with opened_state(self.state.url + "/1", PREFIX) as state:
                entries = await state.entries(tenant, 0.0, 1e12, 0, 1_000_000)
            lines = [(entry, decode_line(entry.value)) for entry in entries]
            return [Row(e.id.removeprefix("call:"), e.at, line) for e, line in lines if isinstance(line, CallLine)]

        return asyncio.run(read())

    def quota_used(self, tenant: str, now: float) -> int:
        """Tokens of the day as they stand in the state."""

        async def read() -> bytes:
            async with opened_state(self.state.url + "/1", PREFIX) as state:
                record = await state.get(TABLE, tenant)
            return record.value if record is not None else b""

        return Windows(Limits(0, TOKENS_PER_DAY), asyncio.run(read())).used(now, 0)["tokens a day"][0]


@contextlib.contextmanager
def torture_pool(folder: Path, tenants: list[str]) -> Iterator[TorturePool]:
    model = write_tiny_tokenizer(write_tiny_llama(folder / "tiny"))
    for name in ("tokenizer_config.json", "generation_config.json"):  # no end token: answers are as long as asked for
        (model / name).write_text("{}")
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(DirectoryServer(folder))
        state = stack.enter_context(DirectoryServer(folder, "--appendonly", "yes"))
        pool = TorturePool(folder, model, tenants, directory, state, stack)
        pool.start()
        yield pool
