"""The serving demo's processes: a directory, two daemons, two prefill and two decode workers, and a Conductor that can be
started anew with another policy. All end with the stage.

Each role has a core of its own, or, with `Cores.BY_NODE`, each node: its prefill and decode workers share it then.
"""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from mooncask.client.socket_path import http_socket_path
from mooncask.conductor.serving.dispatch.costs import Learned
from mooncask.conductor.serving.pages.rows import Calibration, PauseRow
from mooncask.errors import WorkerUnavailable
from mooncask.tools.bench.daemon_process import DaemonProcess
from mooncask.tools.bench.peers import free_port
from mooncask.tools.bench.process import sigterm_waits
from mooncask.tools.block_walk import all_blocks
from mooncask.tools.connection import open_existing
from mooncask.tools.demo.directory_server import DirectoryServer, find_program
from mooncask.tools.demo.serving.client import MODEL
from mooncask.tools.demo.serving.simulated import Constants
from mooncask.tools.demo.serving.variant import Variant

NODES = ("n1", "n2")
BLOCK_TOKENS = 64
SLOTS = 6
DRAM_BYTES = 768 << 20
"""Of each node: 17,000 tokens."""
SLOT_TOKENS = 1536
WORKER_OPTIONS = {
    "dtype": "float32",
    "block-tokens": str(BLOCK_TOKENS),
    "prefill-chunk": "256",
    "slots": str(SLOTS),
    "slot-tokens": str(SLOT_TOKENS),
    "deadline-seconds": "5",
    "gone-seconds": "20",
    "model-name": MODEL,
}
START_SECONDS_MAX = 240.0
STOP_SECONDS_MAX = 15.0
EVICT_BATCH = 1000


class Cores(StrEnum):
    """What has a core of its own."""

    BY_ROLE = "by role"
    BY_NODE = "by node"


@dataclass(frozen=True, slots=True)
class Policy:
    """What a Conductor is started with; `ttft_seconds` and `tbt_seconds` are its one class's service level."""

    variant: Variant
    ttft_seconds: float
    tbt_seconds: float

    def config(self, model: Path, listen: str, workers_listen: str) -> str:
        return f"""[server]
listen = "{listen}"
workers_listen = "{workers_listen}"
[policy]
placement = "{self.variant.placement}"
admission = "{self.variant.admission}"
pause_decode = "{self.variant.pause}"
[limits]
prefix_seconds = 0.5
[classes.default]
ttft_seconds = {self.ttft_seconds:.3f}
tbt_seconds = {self.tbt_seconds:.3f}
[models.{MODEL}]
tokenizer = "{model}"
"""


class ServingStage:
    """A context manager. Entering starts all but the Conductor; `conduct` starts that, and again with another policy."""

    def __init__(self, model: Path, cores: Cores = Cores.BY_ROLE) -> None:
        self._model, self._cores = model, cores
        self._stack = ExitStack()
        self._daemons: dict[str, DaemonProcess] = {}
        self._listen, self._workers_listen = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self._conductor: subprocess.Popen[bytes] | None = None
        self._secret = secrets.token_hex(16)
        self.directory = ""
        """What the nodes find each other's blocks by, for people."""

    @property
    def url(self) -> str:
        return f"http://{self._listen}"

    def __enter__(self) -> Self:
        with self._stack:  # ends what was started when the rest does not start
            self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="mooncask-demo-")))
            directory = self._start_directory()
            addresses = {name: f"127.0.0.1:{free_port()}" for name in NODES}
            secret = secrets.token_hex(16)
            for name in NODES:
                self._start_daemon(name, addresses, directory, secret)
            self._stack.callback(self._end_conductor)
            cores = sorted(os.sched_getaffinity(0))
            for role in ("prefill", "decode"):
                for name in NODES:
                    last = role == "decode" if self._cores is Cores.BY_ROLE else name == NODES[-1]
                    self._start_worker(role, name, cores[-1 if last else 0])
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def conduct(self, policy: Policy) -> None:
        """A fresh start: empty daemons, a Conductor that has learned nothing yet, all four workers registered with it."""
        self._end_conductor()
        self._empty()
        config, log = self.folder / "conductor.toml", self.folder / "conductor.log"
        config.write_text(policy.config(self._model, self._listen, self._workers_listen))
        command = [sys.executable, "-m", "mooncask.tools", "conductor", "--config", str(config)]
        self._conductor = self._spawn(command, log, {"MOONCASK_CONDUCTOR_SERVER_WORKER_SECRET": self._secret}, None)
        wanted = 2 * len(NODES)
        self._wait(log, lambda said: len(set(re.findall(r"worker (\S+) \(", said))) >= wanted and "clients are" in said)

    def learned(self) -> Constants:
        """What the Conductor has learned so far, and what the processes have."""
        request = urllib.request.Request(
            f"http://{self._workers_listen}/internal/v1/costs", headers={"Authorization": f"Bearer {self._secret}"}
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            told = msgspec.json.decode(response.read(), type=dict[str, Learned])[MODEL]
        token_bytes = round(told.token_bytes)
        return Constants(
            prefill=told.prefill,
            step=told.step,
            tail=told.tail,
            kv_bytes_per_token=token_bytes,
            fetch_bytes_per_second=told.fetch_bytes_per_second,
            layers=int(json.loads((self._model / "config.json").read_text())["num_hidden_layers"]),
            block_tokens=BLOCK_TOKENS,
            node_tokens=SLOTS * SLOT_TOKENS,
            dram_tokens=DRAM_BYTES // token_bytes,
        )

    def pauses(self) -> PauseRow:
        """How often decode has stood still so far."""
        with urllib.request.urlopen(f"{self.url}/-/v1/calibration", timeout=10) as response:
            return msgspec.json.decode(response.read(), type=Calibration).pause

    def log_tail(self) -> str:
        """The last lines that everybody wrote."""
        logs = sorted(self.folder.glob("**/*.log"))
        return "\n".join(
            f"{path.relative_to(self.folder)}: {line}" for path in logs for line in path.read_text().splitlines()[-5:]
        )

    # --- starting ---

    def _start_directory(self) -> str:
        """Its URL; empty where no server is installed."""
        program = find_program()
        if program is None:
            self.directory = "static list (neither valkey-server nor redis-server with the valkey package is installed)"
            return ""
        server = self._stack.enter_context(DirectoryServer(program, self.folder))
        self.directory = f"{Path(program).name} at {server.url}"
        return server.url

    def _start_daemon(self, name: str, addresses: dict[str, str], directory: str, secret: str) -> None:
        others = ",".join(address for other, address in addresses.items() if other != name)
        found_by = {"cluster_directory": directory} if directory else {"cluster_peers": others}
        settings = {
            "node_name": name,
            "dram_capacity": f"{DRAM_BYTES >> 20} MiB",
            "http_enabled": "false",
            "ghosts_enabled": "false",
            "cluster_listen": addresses[name],
            "cluster_secret": secret,
            **found_by,
        }
        folder = self.folder / name
        folder.mkdir()
        self._daemons[name] = self._stack.enter_context(DaemonProcess(folder, settings))

    def _start_worker(self, role: str, node: str, core: int) -> None:
        socket = str(self._daemons[node].socket)
        options = {
            **WORKER_OPTIONS,
            "role": role,
            "name": f"{role}-{node}",
            "model": str(self._model),
            "socket": socket,
            "node": node,
            "node-pages": f"unix:{http_socket_path(socket)}",
            "conductor": f"http://{self._workers_listen}",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        command = [sys.executable, "-m", "mooncask.engine_adapter.transformers.server", *words]
        environment = {"MOONCASK_WORKER_SECRET": self._secret, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        process = self._spawn(command, self.folder / node / f"{role}.log", environment, core)
        self._stack.callback(_end, process)

    def _spawn(
        self, command: list[str], log: Path, environment: dict[str, str], core: int | None
    ) -> "subprocess.Popen[bytes]":
        """`core`: the only one that it may run on."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MOONCASK_")}
        with log.open("wb") as sink, sigterm_waits():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env={**inherited, **environment},
                start_new_session=True,  # Ctrl-C reaches whoever started it, who then ends it
            )
        if core is not None:
            os.sched_setaffinity(process.pid, {core})  # it has no other thread yet, and later ones inherit it
        return process

    # --- between two policies ---

    def _end_conductor(self) -> None:
        if self._conductor is not None:
            _end(self._conductor)
            self._conductor = None

    def _empty(self) -> None:
        """Deletes all blocks of both nodes. The namespaces stay, for the workers have them open."""
        for daemon in self._daemons.values():
            with daemon.connect("demo-serve") as client:
                for namespace in client.status().namespaces:
                    handle = open_existing(client, namespace.name)
                    keys = [block.key for block in all_blocks(client, handle)]
                    for start in range(0, len(keys), EVICT_BATCH):
                        client.evict(handle, keys[start : start + EVICT_BATCH])

    def _wait(self, log: Path, done: Callable[[str], bool]) -> None:
        """Raises WorkerUnavailable when that does not come to stand in the log."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not done(log.read_text()):
            if self._conductor is None or self._conductor.poll() is not None:
                raise WorkerUnavailable("conductor", "it ended while it was started")
            if time.monotonic() > deadline:
                raise WorkerUnavailable("conductor", f"its workers were not there within {START_SECONDS_MAX:.0f} s")
            time.sleep(0.1)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, and SIGKILL for one that does not end."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
