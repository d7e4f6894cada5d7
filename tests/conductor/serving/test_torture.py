"""Workers, daemons, the directory, the state and Conductors are killed and frozen at random under load: every complete answer is right,
every request ends once and is billed at most once, and nothing goes on behind its end. MOONCASK_TORTURE_SECONDS makes it longer,
MOONCASK_TORTURE_SEED repeats the choices.
"""

import contextlib
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")
pytest.importorskip("valkey", reason="valkey is not installed: pip install mooncask[cluster]")

from served_pool import Reference, until
from tiny_model import prompt_of
from torture_load import ANSWER_TOKENS, Billing, Load
from torture_pool import DOORS, NODES, WORKERS, TorturePool, torture_pool

SECONDS = float(os.environ.get("MOONCASK_TORTURE_SECONDS", "8"))
SEED = int(os.environ.get("MOONCASK_TORTURE_SEED", str(random.SystemRandom().randrange(1 << 30))))
TENANTS = ["ann", "bob", "cleo", "dan"]
FROZEN_SECONDS_MAX = 3.0
LAST_OF_ITS_ROLE = 0.1
WRITTEN_SECONDS = 8.0
"""When the state is there again, until lines that waited for it are written: an answer's time, a pause, and a busy machine."""
SLOTS = 4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 400)]
log = logging.getLogger(__name__)


@dataclass
class Chaos:
    """Breaks one thing after the other; what takes long to start anew is started beside."""

    pool: TorturePool
    load: Load
    random: random.Random
    threads: ThreadPoolExecutor
    all_is_written: float = 0.0
    done: Counter[str] = field(default_factory=Counter)
    starting: dict[str, "Future[None]"] = field(default_factory=dict)

    def break_something(self) -> None:
        what, breaking = self.random.choice(
            [
                ("worker", self._kill_worker),
                ("worker", self._kill_worker),
                ("frozen worker", self._freeze_worker),
                ("frozen worker", self._freeze_worker),
                ("daemon", self._kill_daemon),
                ("directory", self._restart_directory),
                ("state", self._restart_state),
                ("Conductor", self._kill_conductor),
                ("frozen Conductor", self._freeze_conductor),
            ]
        )
        self.done[what] += breaking()

    def wait_until_all_is_started(self) -> None:
        for started in self.starting.values():
            started.result(120)

    def _kill_worker(self) -> bool:
        """Mostly one whose role another one has: where nothing is served nothing breaks."""
        there = self._there(WORKERS)
        name = self.random.choice(sorted(WORKERS))
        others = [other for other in there if other != name and other.split("-")[0] == name.split("-")[0]]
        if name not in there or not (others or self.random.random() < LAST_OF_ITS_ROLE):
            return False
        self.pool.workers[name].kill()
        self.starting[name] = self.threads.submit(self.pool.start_worker, name)
        return True

    def _freeze_worker(self) -> bool:
        if there := self._there(WORKERS):
            worker = self.pool.workers[self.random.choice(there)]
            self._freeze(worker.freeze, worker.thaw)
        return bool(there)

    def _kill_daemon(self) -> bool:
        if there := self._there(NODES):
            daemon = self.pool.daemons[node := self.random.choice(there)]
            daemon.kill()
            self.starting[node] = self.threads.submit(daemon.run)
        return bool(there)

    def _restart_directory(self) -> bool:
        """It is gone for a moment, and has forgotten everything."""
        self.pool.directory.kill()
        self.load.stop.wait(self.random.uniform(0.0, 2.0))
        self.pool.directory.start()
        return True

    def _restart_state(self) -> bool:
        """It is gone for a moment, and has kept everything. Not while a Conductor starts: that gives up without it."""
        if len(self._there(DOORS)) < len(DOORS):
            return False
        self.pool.state.kill()
        self.load.stop.wait(self.random.uniform(0.0, 2.0))
        self.pool.state.start()
        self.all_is_written = time.monotonic() + WRITTEN_SECONDS
        return True

    def _kill_conductor(self) -> bool:
        """If the other one is there, and nothing waits for a state that was gone: that would be lost with the Conductor."""
        there = self._there(DOORS)
        if len(there) < len(DOORS) or time.monotonic() < self.all_is_written:
            return False
        door = self.random.choice(there)
        self.load.close_door(door)
        self.pool.conductors[door].kill()
        self.starting[door] = self.threads.submit(self._start_conductor, door)
        return True

    def _start_conductor(self, door: str) -> None:
        self.pool.start_conductor(door)
        self.load.open_door(door)

    def _freeze_conductor(self) -> bool:
        if there := self._there(DOORS):
            conductor = self.pool.conductors[self.random.choice(there)]
            self._freeze(conductor.freeze, conductor.thaw)
        return bool(there)

    def _freeze(self, freeze: Callable[[], None], thaw: Callable[[], None]) -> None:
        freeze()
        self.load.stop.wait(self.random.uniform(0.2, FROZEN_SECONDS_MAX))
        thaw()

    def _there(self, names: "tuple[str, ...] | dict[str, str]") -> list[str]:
        return [name for name in names if name not in self.starting or self.starting[name].done()]


def test_under_random_kills_every_request_ends_once_is_billed_once_and_every_whole_answer_is_right(
    tmp_path: Path,
) -> None:
    log.info("seed %d", SEED)
    with torture_pool(tmp_path, TENANTS) as pool, ThreadPoolExecutor(len(TENANTS) + 6) as threads:
        reference = Reference(pool.model_folder)
        prompts = [prompt_of(300, seed=i % 3)[: 200 + 20 * i] + prompt_of(60, seed=50 + i) for i in range(10)]
        answers = [(prompt, reference.answer(prompt, ANSWER_TOKENS)) for prompt in prompts]
        load = Load(pool, answers, random.Random(SEED))
        chaos = Chaos(pool, load, random.Random(SEED + 1), threads)
        clients = [threads.submit(load.client, tenant) for tenant in TENANTS]
        try:
            until_time = time.monotonic() + SECONDS
            while time.monotonic() < until_time:
                chaos.break_something()
                load.stop.wait(chaos.random.uniform(0.3, 1.5))
            chaos.wait_until_all_is_started()
            pool.wait_until_whole()
            whole = load.whole()
            until(lambda: load.whole() >= whole + 2 * len(TENANTS), "nothing is answered any more", 60)
        finally:
            load.stop.set()
            for client in clients:
                client.result(120)
        log.info("seed %d; broken: %s; ended: %s", SEED, dict(chaos.done), dict(load.counts()))
        assert not load.wrong, (SEED, load.wrong[:3])
        assert_all_ended(pool, load)
        assert_billed_once(pool, load)


def assert_all_ended(pool: TorturePool, load: Load) -> None:
    """At the workers nothing runs and every slot is free; in the Conductors' records each request has one end."""
    until(pool.idle, f"seed {SEED}: workers go on with what nobody waits for")
    for name, worker in pool.workers.items():
        report = worker.state().report
        assert (report.running, report.waiting) == (0, 0), name
        if name.startswith("decode"):
            assert report.free_slots == SLOTS, name
    for door in DOORS:
        page = pool.page(door, "overview")
        assert (page["running"], page["waiting"]) == (0, 0)
        now = load.generation[door]
        ours = [one for one in load.asked if (one.door, one.generation) == (door, now) and one.dispatched]
        assert sum(page["outcomes"].values()) == len(ours), (SEED, door, page["outcomes"], load.counts())


def assert_billed_once(pool: TorturePool, load: Load) -> None:
    """Answered: once, with the right counts; broken off: at most once; turned away: without a token."""
    billing, charged, counted_alone = Billing(), 0, pool.counted_alone_and_was_killed()
    for tenant in TENANTS:
        asked = [one for one in load.asked if one.tenant == tenant]
        with contextlib.suppress(AssertionError):  # lines wait a moment for their place in the log
            until(lambda a=asked, t=tenant: not Billing().compare(a, pool.rows(t), load), "", 5)  # type: ignore[misc]
        rows = pool.rows(tenant)
        faults = billing.compare(asked, rows, load)
        assert not faults, (SEED, len(faults), faults[:3])
        used = sum(row.line.prompt_tokens + row.line.output_tokens for row in rows if row.line.output_tokens)
        counted = pool.quota_used(tenant, time.time())
        assert counted >= used or counted_alone, (SEED, tenant)
        charged += counted - used
    log.info("billed: %s; lost with their Conductor: %d", dict(billing.kinds), billing.lost)
    log.info("tokens counted on quotas and not used: %d", charged)
