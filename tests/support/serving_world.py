"""A Conductor with tiny workers and daemons that a test may end and start anew."""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from conductor_process import ConductorProcess
from daemon_process import DaemonProcess
from tiny_model import write_tiny_llama
from tiny_tokenizer import write_tiny_tokenizer
from worker_server import SECRET, WorkerServerProcess

from mooncask.client.control_client import ControlClient
from mooncask.client.socket_path import http_socket_path

OPTIONS = {"load": "always", "block_tokens": "16", "prefill_chunk": "64", "slots": "4", "slot_tokens": "2048"}
READY_SECONDS = 120.0
SETTINGS = """
[server]
worker_secret = "{secret}"
[policy]
admission = "none"
[limits]
prefix_seconds = 1.0
[models.tiny]
tokenizer = "{model}"
[caching]
check_seconds = 0.2
lost_seconds = 1.0
{caching}
[prices.default]
input = 10.0
output = 10.0
creation = 20.0
storage_minute = 5.0
call = 0.01
{more}
"""


def eventually(what: Callable[[], Any], seconds: float = 20.0) -> Any:
    """What comes true in the end, as its value."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"it did not come: {what}"
        time.sleep(0.05)
    return found


@dataclass
class World:
    """Made by `serving_world`. One model `tiny`; daemons n0, n1, … with a prefill worker each, and one decode worker on n0."""

    folder: Path
    model: Path
    settings: str
    daemons: list[DaemonProcess] = field(default_factory=list)
    workers: list[WorkerServerProcess] = field(default_factory=list)
    conductors: list[ConductorProcess] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)
    key: str = ""
    """Sent where a call gives none."""
    first: int = 0
    """Which Conductor is asked."""

    @property
    def url(self) -> str:
        return self.conductors[self.first].url

    def start_conductor(self, name: str = "c0") -> ConductorProcess:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "conductor.log").unlink(missing_ok=True)
        conductor = self.stack.enter_context(ConductorProcess.start(folder, self.settings))
        self.conductors.append(conductor)
        return conductor

    def start_worker(self, role: str, node: int, conductor: ConductorProcess) -> WorkerServerProcess:
        daemon = self.daemons[node]
        pages = f"unix:{http_socket_path(daemon.socket_path)}"
        more = {"conductor": conductor.workers_url, "node": f"n{node}", "node_pages": pages, **OPTIONS}
        name = f"{role}-{node}-{len(self.workers)}"
        start = WorkerServerProcess.start(self.folder, name, role, self.model, daemon.socket_path, **more)
        worker = self.stack.enter_context(start)
        self.workers.append(worker)
        return worker

    def ready(self, conductor: ConductorProcess) -> None:
        eventually(lambda: requests.get(conductor.url + "/readyz", timeout=5).status_code == 200, READY_SECONDS)

    def ask(self, method: str, path: str, body: Any = None, key: str = "", **headers: str) -> requests.Response:
        if key := key or self.key:
            headers["Authorization"] = f"Bearer {key}"
        return requests.request(method, self.url + path, json=body, headers=headers, timeout=60)

    def chat(self, messages: list[dict[str, Any]], key: str = "", **headers: str) -> requests.Response:
        body = {"model": "tiny", "messages": messages, "max_tokens": 4, "temperature": 0}
        return self.ask("POST", "/v1/chat/completions", body, key, **headers)

    def bill(self, tenant: str = "default") -> dict[str, Any]:
        answer = requests.get(f"{self.url}/-/v1/bill", params={"tenant": tenant}, timeout=10)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def pins(self, node: int = 0) -> int:
        """Bytes pinned on a node, wherever they are."""
        with ControlClient(self.daemons[node].socket_path) as pages:
            return max(tier.pinned_bytes for tier in pages.overview().tiers)

    def create(self, messages: list[dict[str, Any]], key: str = "", **more: Any) -> dict[str, Any]:
        """A new cache. What is refused fails the test."""
        answer = self.ask("POST", "/v1/caching", {"model": "tiny", "messages": messages, **more}, key)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def get(self, id: str, key: str = "") -> dict[str, Any]:
        return dict(self.ask("GET", f"/v1/caching/{id}", key=key).json())

    def until(self, id: str, status: str, key: str = "", seconds: float = 60.0) -> dict[str, Any]:
        return dict(eventually(lambda: (c := self.get(id, key)) and c["status"] == status and c, seconds))


@contextlib.contextmanager
def serving_world(
    folder: Path, nodes: int = 1, caching: str = "", more: str = "", daemon: dict[str, Any] | None = None
) -> Iterator[World]:
    model = write_tiny_llama(folder / "tiny")
    write_tiny_tokenizer(model)
    settings = SETTINGS.format(secret=SECRET, model=model, caching=caching, more=more)
    world = World(folder, model, settings)
    with world.stack:
        for number in range(nodes):
            place = folder / f"n{number}"
            place.mkdir()
            world.daemons.append(world.stack.enter_context(DaemonProcess.start(place, daemon or {})))
        conductor = world.start_conductor()
        for number in range(nodes):
            world.start_worker("prefill", number, conductor)
        world.start_worker("decode", 0, conductor)
        world.ready(conductor)
        yield world
