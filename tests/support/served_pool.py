"""A Conductor, a daemon and workers of the tiny model as processes, and what each answer must be: for tests that break them."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from conductor_process import ConductorProcess
from daemon_process import DaemonProcess
from tiny_model import prompt_of, write_tiny_llama
from tiny_tokenizer import write_tiny_tokenizer
from worker_server import SECRET, WorkerServerProcess

from mooncask.client.socket_path import http_socket_path

BLOCK = 16
OPTIONS = {
    "load": "always",
    "block_tokens": str(BLOCK),
    "prefill_chunk": "32",
    "slots": "4",
    "slot_tokens": "2048",
    "deadline_seconds": "1.0",
}
SETTINGS = """
[server]
worker_secret = "{secret}"
client_seconds = 5.0
drain_seconds = 20.0
[policy]
admission = "none"
[limits]
prefix_seconds = 0.5
[models.tiny]
tokenizer = "{model}"
"""
READY_SECONDS = 120.0


def until(condition: Callable[[], object], what: str, seconds: float = 30.0) -> float:
    """Returns how long it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, what
        time.sleep(0.02)
    return time.monotonic() - started


@dataclass
class Stream:
    """One streamed answer as its client saw it, event by event."""

    response: requests.Response
    events: list[str] = field(default_factory=list)
    error: Exception | None = None

    def read(self, events: int = 1 << 30) -> "Stream":
        """Up to so many events, its end, or a broken connection."""
        try:
            while len(self.events) < events and (line := next(self._lines, None)) is not None:
                if line.startswith(b"data: "):
                    self.events.append(line[6:].decode())
        except requests.RequestException as exc:
            self.error = exc
        return self

    def __post_init__(self) -> None:
        self._lines = self.response.iter_lines(chunk_size=1)

    @property
    def whole(self) -> bool:
        return bool(self.events) and self.events[-1] == "[DONE]"

    def tokens(self) -> list[int]:
        """Of an answer that ended: its last chunk has them."""
        assert self.whole, (self.events[-2:], self.error)
        return list(json.loads(self.events[-2])["choices"][0]["token_ids"])

    def close(self) -> None:
        self.response.close()


@dataclass
class Pool:
    """What is up. Workers by name; a killed one is started anew by `start_worker`."""

    folder: Path
    daemon: DaemonProcess
    model_folder: Path
    ports: list[int]
    stack: contextlib.ExitStack
    conductor: ConductorProcess
    workers: dict[str, WorkerServerProcess] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.conductor.url

    def start_conductor(self) -> None:
        """On the same addresses each time."""
        start = start_conductor(self.folder / "first", self.model_folder, self.ports[:2])
        self.conductor = self.stack.enter_context(start)

    def second_conductor(self) -> contextlib.AbstractContextManager[ConductorProcess]:
        """Over the same workers, which look for it all the time."""
        return start_conductor(self.folder / "second", self.model_folder, self.ports[2:])

    def start_workers(self, names: list[str]) -> None:
        """All at once: most of a start is importing."""
        with ThreadPoolExecutor(len(names)) as threads:
            list(threads.map(self.start_worker, names))

    def start_worker(self, name: str) -> None:
        """`name`: its role, a hyphen, a number."""
        pages = f"unix:{http_socket_path(self.daemon.socket_path)}"
        conductors = " ".join(f"http://127.0.0.1:{port}" for port in self.ports[1::2])
        options = {"conductor": conductors, "node": "n1", "node_pages": pages, "model_name": "tiny", **OPTIONS}
        start = WorkerServerProcess.start(
            self.folder, name, name.partition("-")[0], self.model_folder, self.daemon.socket_path, **options
        )
        self.workers[name] = self.stack.enter_context(start)

    def wait_until_ready(self, prefills: int, decodes: int, url: str = "") -> None:
        """As many of each role take requests."""

        def ready() -> bool:
            try:
                pools = self.page("pools", url)["pools"]
                roles = [row["role"] for pool in pools for row in pool["workers"] if not row["draining"]]
            except requests.RequestException:
                return False
            return roles.count("prefill") == prefills and roles.count("decode") == decodes

        until(ready, "the workers did not register", READY_SECONDS)

    def page(self, name: str, url: str = "") -> Any:
        answer = requests.get(f"{url or self.url}/-/v1/{name}", timeout=5)
        answer.raise_for_status()
        return answer.json()

    def set_role(self, worker: str, role: str) -> None:
        answer = requests.post(f"{self.url}/-/v1/workers/{worker}/role", json={"role": role}, timeout=5)
        answer.raise_for_status()

    # --- requests ---

    def prompt(self, length: int, seed: int) -> list[int]:
        return prompt_of(length, seed=seed)

    def body(self, prompt: list[int], max_tokens: int, **more: Any) -> dict[str, Any]:
        asked = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        return {**asked, "return_token_ids": True, **more}

    def ask(self, prompt: list[int], max_tokens: int, **more: Any) -> requests.Response:
        return requests.post(f"{self.url}/v1/completions", json=self.body(prompt, max_tokens, **more), timeout=120)

    def tokens(self, prompt: list[int], max_tokens: int, **more: Any) -> list[int]:
        answer = self.ask(prompt, max_tokens, **more)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["choices"][0]["token_ids"])

    def stream(self, prompt: list[int], max_tokens: int, **more: Any) -> Stream:
        """Its header has come: decode has admitted it."""
        body = self.body(prompt, max_tokens, stream=True, **more)
        return Stream(requests.post(f"{self.url}/v1/completions", json=body, stream=True, timeout=120))

    def serving(self, role: str) -> list[WorkerServerProcess]:
        """The workers of a role that have a request now."""
        return [
            worker
            for name, worker in self.workers.items()
            if name.startswith(role) and worker.process.poll() is None and worker.state().report.requests
        ]

    def idle(self) -> bool:
        """No worker has a request."""
        return not self.serving("prefill") and not self.serving("decode")


@contextlib.contextmanager
def served_pool(folder: Path, workers: list[str]) -> Iterator[Pool]:
    model = write_tiny_llama(folder / "tiny")
    write_tiny_tokenizer(model)
    for name in (
        "tokenizer_config.json",
        "generation_config.json",
    ):  # no end token: answers are as long as they are asked for
        (model / name).write_text("{}")
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(DaemonProcess.start(folder))
        ports = free_ports(4)
        conductor = stack.enter_context(start_conductor(folder / "first", model, ports[:2]))
        pool = Pool(folder, daemon, model, ports, stack, conductor)
        pool.start_workers(workers)
        roles = [name.partition("-")[0] for name in workers]
        pool.wait_until_ready(roles.count("prefill"), roles.count("decode"))
        yield pool


@contextlib.contextmanager
def start_conductor(folder: Path, model: Path, ports: list[int], settings: str = "") -> Iterator[ConductorProcess]:
    """`settings`: TOML instead of SETTINGS."""
    folder.mkdir(exist_ok=True)
    log = folder / "conductor.log"
    if log.exists():  # its addresses are read from it
        log.rename(folder / f"conductor-{time.monotonic_ns()}.log")
    listen = {
        "MOONCASK_CONDUCTOR_SERVER_LISTEN": f"127.0.0.1:{ports[0]}",
        "MOONCASK_CONDUCTOR_SERVER_WORKERS_LISTEN": f"127.0.0.1:{ports[1]}",
    }
    settings = settings or SETTINGS.format(secret=SECRET, model=model)
    with ConductorProcess.start(folder, settings, listen) as conductor:
        yield conductor


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


class Reference:
    """What an engine without a store would answer, greedily. Safe for concurrent use."""

    def __init__(self, model_folder: Path) -> None:
        from mooncask.engine_adapter.transformers.model import load_model

        self._model = load_model(model_folder, "float32", BLOCK)
        self._lock = threading.Lock()

    def answer(self, prompt: list[int], max_tokens: int) -> list[int]:
        from mooncask.engine_adapter.transformers.engine import ignore_layer
        from mooncask.engine_adapter.transformers.kv_layout import KvBuffer, cache_over

        with self._lock:
            buffer = KvBuffer(self._model.layout, len(prompt) + max_tokens)
            said: list[int] = []
            tokens, length = list(prompt), 0
            while len(said) < max_tokens:
                logits = self._model.forward(tokens, cache_over(buffer, length, ignore_layer))
                length += len(tokens)
                said.append(int(logits.argmax()))
                tokens = said[-1:]
            return said
