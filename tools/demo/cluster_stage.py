"""The cluster demo's processes: a directory, three daemons, and a worker on each. All end with the stage."""

import os
import secrets
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from mooncask.client.control import Peers
from mooncask.client.control_client import ControlClient
from mooncask.engine_adapter.transformers.worker_process import WorkerProcess, WorkerSettings
from mooncask.tools.bench.daemon_process import DaemonProcess
from mooncask.tools.bench.peers import free_port
from mooncask.tools.demo.directory_server import DirectoryServer, find_program
from mooncask.tools.demo.stage import WORKER_OPTIONS

NODES = ("n1", "n2", "n3")
ROLES = {"n1": "prefill", "n2": "decode", "n3": "decode"}


class ClusterStage:
    """A context manager. Entering starts directory, daemons and workers' processes; `wait_ready` waits for the models."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._stack = ExitStack()
        self._daemons: dict[str, DaemonProcess] = {}
        self.workers: dict[str, WorkerProcess] = {}
        self.directory = ""
        """What the nodes find each other's blocks by, for people."""

    def __enter__(self) -> Self:
        with self._stack:  # ends what was started when the rest does not start
            self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="mooncask-demo-")))
            for name, settings in self._settings(self._start_directory()).items():
                self._start_daemon(name, settings)
            for name, role in ROLES.items():
                self.workers[name] = self._worker(name, role)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def wait_ready(self) -> None:
        """Raises WorkerUnavailable when a worker did not start."""
        for worker in self.workers.values():
            worker.ready()

    def kill(self, name: str) -> None:
        """SIGKILL to a node's daemon and to its worker, as when the machine goes."""
        daemon = self._daemons.pop(name)
        os.kill(daemon.pid, signal.SIGKILL)
        daemon.stop()  # reaps it
        worker = self.workers.pop(name, None)
        if worker is not None:
            worker.kill()

    def peers(self) -> dict[str, Peers]:
        """What each living node says of the others."""
        found = {}
        for name, daemon in self._daemons.items():
            with ControlClient(str(daemon.socket)) as control:
                found[name] = control.peers()
        return found

    def log_tail(self) -> str:
        """The last lines that daemons and workers wrote."""
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

    def _settings(self, directory: str) -> dict[str, dict[str, str]]:
        addresses = {name: f"127.0.0.1:{free_port()}" for name in NODES}
        common = {
            "dram_capacity": "384 MiB",
            "http_enabled": "false",
            "ghosts_enabled": "false",
            "cluster_secret": secrets.token_hex(16),
        }
        return {
            name: {
                **common,
                "node_name": name,
                "cluster_listen": address,
                **(
                    {"cluster_directory": directory}
                    if directory
                    else {"cluster_peers": ",".join(other for other in addresses.values() if other != address)}
                ),
            }
            for name, address in addresses.items()
        }

    def _start_daemon(self, name: str, settings: dict[str, str]) -> None:
        folder = self.folder / name
        folder.mkdir()
        self._daemons[name] = DaemonProcess(folder, settings)
        self._stack.callback(lambda: self.kill(name) if name in self._daemons else None)

    def _worker(self, name: str, role: str) -> WorkerProcess:
        log = self._stack.enter_context((self.folder / name / "worker.log").open("wb"))
        settings = WorkerSettings(role, self._model, str(self._daemons[name].socket), WORKER_OPTIONS)
        return self._stack.enter_context(WorkerProcess(settings, log))
