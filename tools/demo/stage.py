"""The demo's processes: a daemon with a store of its own, one prefill worker, two decode workers. All end with the stage."""

import os
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.engine_adapter.transformers.messages import Ready
from mooncask.engine_adapter.transformers.worker_process import WorkerProcess, WorkerSettings
from mooncask.tools.bench.daemon_process import DaemonProcess
from mooncask.tools.bench.disk_limits import takes_direct_io

DECODE_WORKERS = 2
BLOCK_TOKENS = 16
WORKER_OPTIONS = {
    "dtype": "float32",
    "block-tokens": str(BLOCK_TOKENS),
    "prefill-chunk": "256",
    "deadline-seconds": "5",
}


class Stage:
    """A context manager. Entering starts the daemon and the workers' processes; `wait_ready` waits for their models."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._stack = ExitStack()
        self._daemon: DaemonProcess | None = None
        self.prefill: WorkerProcess
        self.decode: list[WorkerProcess] = []

    def __enter__(self) -> Self:
        with self._stack:  # ends what was started when the rest does not start
            self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="mooncask-demo-")))
            self._stack.callback(self.kill_daemon)  # its data goes with the folder: flushing it would be for nothing
            self.start_daemon()
            self._start_workers()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def daemon(self) -> DaemonProcess:
        assert self._daemon is not None, "the daemon is not running"
        return self._daemon

    def start_daemon(self) -> None:
        """Also starts it again on the same data, at the same socket."""
        self._daemon = DaemonProcess(self.folder, self._daemon_settings())

    def kill_daemon(self) -> None:
        """SIGKILL: what it had not made durable is gone."""
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            os.kill(daemon.pid, signal.SIGKILL)
            daemon.stop()  # reaps it

    def wait_ready(self) -> list[Ready]:
        """Raises WorkerUnavailable when a worker did not start."""
        return [worker.ready() for worker in (self.prefill, *self.decode)]

    def client(self, ready: Ready) -> tuple[LocalClient, NamespaceHandle]:
        """A client of the demo's own, on the workers' namespace."""
        client = self.daemon.connect("demo")
        return client, client.open_namespace(family=ready.family)

    def log_tail(self) -> str:
        """The last lines that daemon and workers wrote."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{path.name}: {line}" for path in logs for line in path.read_text().splitlines()[-5:])

    def _start_workers(self) -> None:
        self.prefill = self._worker("prefill", "prefill.log")
        self.decode = [self._worker("decode", f"decode-{number}.log") for number in range(DECODE_WORKERS)]

    def _worker(self, role: str, log_name: str) -> WorkerProcess:
        log = self._stack.enter_context((self.folder / log_name).open("wb"))
        settings = WorkerSettings(role, self._model, str(self.daemon.socket), WORKER_OPTIONS)
        return self._stack.enter_context(WorkerProcess(settings, log))

    def _daemon_settings(self) -> dict[str, str]:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        return {
            "dram_capacity": "512 MiB",
            "nvme_capacity": "2 GiB",
            "nvme_path": str(data),
            "nvme_direct": str(takes_direct_io(data)).lower(),
            "http_listen": "127.0.0.1:0",
        }
