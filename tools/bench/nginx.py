"""nginx as Debian ships it, with a configuration of the bench's own, serving a folder: what a plain web server reaches."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from mooncask.errors import DaemonUnavailable
from mooncask.tools.bench.process import sigterm_waits

START_SECONDS_MAX = 10.0
PLACES = ("/usr/sbin", "/usr/local/sbin")
CONFIGURATION = """\
daemon off;
worker_processes auto;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
{user}
events {{ worker_connections 512; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    tcp_nodelay on;
    keepalive_requests 100000000;
    open_file_cache max=1000;
    default_type application/octet-stream;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


def nginx_program() -> str | None:
    """Where nginx is; None where it is not installed."""
    return shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", ""), *PLACES]))


class Nginx:
    """Serves `root` on a free port of loopback while it is open, with all that it writes in `folder`. A context manager."""

    def __init__(self, program: str, folder: Path, root: Path) -> None:
        folder.mkdir()
        self.port = _free_port()
        user = "user root;" if os.getuid() == 0 else ""  # what the bench may read, its workers may
        file = folder / "nginx.conf"
        file.write_text(CONFIGURATION.format(folder=folder, port=self.port, root=root, user=user))
        command = [program, "-p", str(folder), "-c", str(file), "-e", str(folder / "nginx.log")]
        try:
            with sigterm_waits():
                self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self._wait(folder / "nginx.log")
        except BaseException:
            if hasattr(self, "_process"):
                self.close()
            raise

    def close(self) -> None:
        """SIGTERM to the one that was started; it ends its workers."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._process.wait()

    def _wait(self, log: Path) -> None:
        end = time.monotonic() + START_SECONDS_MAX
        while self._process.poll() is None and time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except ConnectionRefusedError:
                time.sleep(0.02)
            else:
                return
        said = log.read_text(errors="replace").strip() if log.exists() else ""
        raise DaemonUnavailable(f"127.0.0.1:{self.port}", f"nginx did not start: {said[-300:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
