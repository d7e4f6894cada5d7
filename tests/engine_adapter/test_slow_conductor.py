"""A Conductor that is slow and not gone keeps its calls."""

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import msgspec
import requests
from tiny_model import prompt_of, write_tiny_llama
from worker_server import SECRET, WorkerServerProcess

from mooncask.client.worker_api import (
    CONDUCTOR_HEADER,
    GONE_SECONDS,
    PAUSE_SECONDS_MAX,
    DecodeCall,
    PauseCall,
    Reported,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NAME = "slow"
HEADERS = {"Authorization": f"Bearer {SECRET}", CONDUCTOR_HEADER: NAME}


@contextmanager
def conductor(report_seconds: float) -> Iterator[str]:
    """Its address. Every report is answered so late."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            report = self.path.endswith("/report")
            if report:
                over.wait(report_seconds)
            body = msgspec.json.encode(Reported(known=True, conductor=NAME)) if report else b"{}"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

        def handle(self) -> None:
            with contextlib.suppress(OSError):  # the worker did not wait for the answer
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_conductor_whose_loop_always_lags_by_more_than_a_second_keeps_its_calls(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny")
    options = {"load": "never", "block_tokens": "16", "slots": "2", "slot_tokens": "1024"}
    with (
        conductor(1.25) as address,
        WorkerServerProcess.start(
            tmp_path, "d1", "decode", model, str(tmp_path / "no.sock"), conductor=address, **options
        ) as worker,
    ):
        body = msgspec.json.encode(DecodeCall(id="one", tokens=prompt_of(20, seed=1), max_tokens=900))
        url = worker.address
        with requests.post(f"{url}/v1/decode", data=body, headers=HEADERS, stream=True, timeout=60) as response:
            lines = response.iter_lines(chunk_size=1)  # kept: a reader that is dropped closes its connection
            assert next(lines)
            until = time.monotonic() + 2 * GONE_SECONDS
            pause = msgspec.json.encode(PauseCall(seconds=PAUSE_SECONDS_MAX))  # so that it lasts
            while time.monotonic() < until:
                requests.post(f"{url}/v1/pause", data=pause, headers=HEADERS, timeout=10)
                assert worker.state().report.requests == ["one"], worker.log.read_text()
