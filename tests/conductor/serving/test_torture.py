"""Workers, the daemon and the Conductor are killed and frozen at random under load: every complete answer is right, every
request ends once, and nothing goes on behind its end. MOONCASK_TORTURE_SECONDS makes it longer, MOONCASK_TORTURE_SEED repeats it.
"""

import logging
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import requests
from served_pool import Pool, Reference, served_pool, until

SECONDS = float(os.environ.get("MOONCASK_TORTURE_SECONDS", "20"))
SEED = int(os.environ.get("MOONCASK_TORTURE_SEED", str(random.SystemRandom().randrange(1 << 30))))
CLIENTS = 4
ANSWER_TOKENS = 48

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 400)]
log = logging.getLogger(__name__)


@dataclass
class Load:
    """Clients that ask one request after the other. `generation`: how often the Conductor was started."""

    pool: Pool
    answers: list[tuple[list[int], list[int]]]
    random: random.Random
    ended: Counter[str] = field(default_factory=Counter)
    by_generation: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    generation: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    open: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self) -> None:
        while not self.stop.is_set():
            if not self.open.wait(0.1):
                continue
            with self._lock:
                prompt, answer = self.random.choice(self.answers)
                streamed, generation = self.random.random() < 0.5, self.generation
            how, heard = self._ask(prompt, answer, streamed)
            with self._lock:
                self.ended[how] += 1
                self.by_generation[generation] += heard
            if how not in ("whole",):
                self.stop.wait(0.2)

    def _ask(self, prompt: list[int], answer: list[int], streamed: bool) -> tuple[str, bool]:
        """How it ended, and whether a dispatcher had it."""
        try:
            if streamed:
                return self._stream(prompt, answer)
            response = self.pool.ask(prompt, ANSWER_TOKENS)
        except requests.RequestException:
            return "broken connection", True
        if response.status_code != 200:
            self._check_failure(response.text)
            return f"status {response.status_code}", response.status_code != 404
        self._check(response.json()["choices"][0]["token_ids"], answer)
        return "whole", True

    def _stream(self, prompt: list[int], answer: list[int]) -> tuple[str, bool]:
        stream = self.pool.stream(prompt, ANSWER_TOKENS)
        try:
            if stream.response.status_code != 200:
                return f"status {stream.response.status_code}", stream.response.status_code != 404
            stream.read()
            if stream.whole:
                self._check(stream.tokens(), answer)
                return "whole", True
            if stream.error is not None:
                return "broken connection", True
            if not stream.events or '"error"' not in stream.events[-1]:
                self.wrong.append(f"a stream ended well without an end: {stream.events[-1:]}")
            self._check_failure(stream.events[-1] if stream.events else "")
            return "error event", True
        finally:
            stream.close()

    def _check_failure(self, told: str) -> None:
        """A typed error, never a fault of the Conductor."""
        if "internal_error" in told:
            self.wrong.append(told)

    def _check(self, said: list[int], answer: list[int]) -> None:
        if said != answer:
            self.wrong.append(f"said {said}, not {answer}")


@dataclass
class Chaos:
    """Breaks one thing after the other; what was killed is started again beside."""

    pool: Pool
    load: Load
    random: random.Random
    threads: ThreadPoolExecutor
    done: Counter[str] = field(default_factory=Counter)
    starting: dict[str, "Future[None]"] = field(default_factory=dict)

    def break_something(self) -> None:
        what = self.random.choice(["worker", "worker", "freeze", "freeze", "daemon", "conductor"])
        self.done[what] += 1
        if what == "daemon":
            self.pool.daemon.restart()
        elif what == "conductor":
            self._restart_conductor()
        else:
            self._worker(freeze=what == "freeze")

    def _restart_conductor(self) -> None:
        self.load.open.clear()
        self.pool.conductor.kill()
        self.pool.start_conductor()
        self.load.generation += 1
        self.load.open.set()

    def _worker(self, freeze: bool) -> None:
        there = [name for name in self.pool.workers if name not in self.starting or self.starting[name].done()]
        if not there:
            return
        name = self.random.choice(there)
        worker = self.pool.workers[name]
        if freeze:
            worker.freeze()
            self.load.stop.wait(self.random.uniform(0.2, 3.0))
            worker.thaw()
        else:
            worker.kill()
            self.starting[name] = self.threads.submit(self.pool.start_worker, name)


def test_under_random_kills_every_request_ends_once_and_every_whole_answer_is_right(tmp_path: Path) -> None:
    log.info("seed %d", SEED)
    workers = ["prefill-1", "prefill-2", "decode-1", "decode-2"]
    with served_pool(tmp_path, workers) as pool, ThreadPoolExecutor(CLIENTS + 4) as threads:
        reference = Reference(pool.model_folder)
        prompts = [pool.prompt(300, i % 3)[: 200 + 20 * i] + pool.prompt(60, 50 + i) for i in range(10)]
        load = Load(
            pool, [(prompt, reference.answer(prompt, ANSWER_TOKENS)) for prompt in prompts], random.Random(SEED)
        )
        chaos = Chaos(pool, load, random.Random(SEED + 1), threads)
        load.open.set()
        clients = [threads.submit(load.client) for _ in range(CLIENTS)]
        try:
            until_time = time.monotonic() + SECONDS
            while time.monotonic() < until_time:
                chaos.break_something()
                load.stop.wait(chaos.random.uniform(0.5, 2.0))
            for started in chaos.starting.values():
                started.result(120)
            pool.wait_until_ready(2, 2)
            whole = load.ended["whole"]
            until(lambda: load.ended["whole"] >= whole + CLIENTS, "nothing is answered any more", 60)
        finally:
            load.stop.set()
            for client in clients:
                client.result(120)
        log.info("broken: %s; ended: %s", dict(chaos.done), dict(load.ended))
        assert not load.wrong, (SEED, load.wrong[:3])
        assert_all_ended(pool, load)


def assert_all_ended(pool: Pool, load: Load) -> None:
    """At the workers nothing runs and every slot is free; in the Conductor's records each request has one end."""
    until(pool.idle, f"seed {SEED}: workers go on with what nobody waits for")
    for name, worker in pool.workers.items():
        report = worker.state().report
        assert (report.running, report.waiting) == (0, 0), name
        if name.startswith("decode"):
            assert report.free_slots == 4, name
    page = pool.page("overview")
    assert (page["running"], page["waiting"]) == (0, 0)
    assert sum(page["outcomes"].values()) == load.by_generation[load.generation], (SEED, page["outcomes"], load.ended)
