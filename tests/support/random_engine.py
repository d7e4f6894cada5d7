"""The blocks' side of a vLLM engine that starts, preempts, aborts and finishes requests at random, and checks whose KV it has.

The rules are those of vLLM's scheduler: blocks are shared by a prefix cache and counted, a request that loads keeps its
places until all workers have reported, a finished one until its saves are done, a preempted one gives them up at once.
Groups with a sliding window give blocks back whenever a request is scheduled or ends, and a load that failed has such a
request begin anew. A request that loads within its step is computed at once; what it makes of KV that did not come is
wrong, and must not be saved. Free blocks are overwritten in every step, so that a late read or write shows.
"""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import product
from typing import Any

from late_device import LateDevice
from small_engine import BLOCK_TOKENS, BLOCKS, Request, SmallEngine

from mooncask.engine_adapter.vllm.device.staged import StagedCopies
from mooncask.engine_adapter.vllm.messages import WorkerReport
from mooncask.engine_adapter.vllm.scheduling import Scheduled

SECONDS = 20.0
POISON = -1.0
SLOT_BYTES = 6144


@dataclass
class Running:
    """One request in the engine."""

    request: Request
    table: list[list[int]] = field(default_factory=list)
    computed: int = 0
    answer: int = 0
    state: str = "waiting"
    loading: range = range(0)
    waits_for: int = 0
    failed: set[int] = field(default_factory=set)
    anew: bool = False
    """Its load failed as a whole."""
    in_step: bool = False
    """It loads in the step that computes it."""

    @property
    def held(self) -> list[int]:
        return [block for ids in self.table for block in ids if block]


class RandomEngine:
    """The scheduler's and the workers' part of vLLM, as far as blocks go."""

    def __init__(
        self,
        socket: str,
        chance: random.Random,
        model: str,
        workers: int,
        windows: tuple[int, ...] = (0,),
        device: LateDevice | None = None,
        **settings: object,
    ) -> None:
        """On a `device` the engine's own reading and writing of KV is launched on it, and done late."""
        if device is not None:
            settings["copies"] = StagedCopies(device, SLOT_BYTES, 6 * SLOT_BYTES)
        self.small = SmallEngine(
            socket, workers, model=model, windows=windows, deadline_ms=150, load_deadline_ms=400, **settings
        )
        self.device, self.wrong = device, list[str]()
        self.windows = windows
        self.lost_loads = 0
        self.chance, self.model, self.workers = chance, model, workers
        self.requests: dict[str, Running] = {}
        self.held: Counter[int] = Counter()
        self.cached: dict[bytes, int] = {}
        self.leaving: dict[str, tuple[list[int], int]] = {}
        """Finished requests whose blocks are kept: blocks, and workers that have not let go."""
        self.preempted: list[str] = []
        self.loaded_blocks = 0

    # --- the KV of a block: a number that only its whole prefix gives ---

    def value(self, one: Request, block: int, rank: int) -> float:
        tokens = one.all_token_ids[: (block + 1) * BLOCK_TOKENS]
        digest = sha256(f"{self.model} {rank}/{self.workers} {one.cache_salt} {tokens}".encode()).digest()
        return float(int.from_bytes(digest[:3]))

    def fill(self, block_id: int, rank: int, group: int, value: float) -> None:
        for layer, name in enumerate(self.small.layer_names[group]):
            self.launch(partial(self.small.tensors[rank][name][block_id].fill_, value + 10 * group + layer))

    def launch(self, kernel: Callable[[], object]) -> None:
        if self.device is None:
            kernel()
        else:
            self.device.compute.launch(kernel)

    def check(self, running: Running, blocks: int) -> None:
        """Of the first blocks, all that the next token attends to are its own."""
        for group, window in enumerate(self.windows):
            first = self.kept(window, running.computed)
            for rank, block in product(range(self.workers), range(first, blocks)):
                wanted = self.value(running.request, block, rank) + 10 * group
                place = running.table[group][block]
                what = f"block {block} of {running.request.request_id}, group {group}, worker {rank} is not its own"
                assert place, what
                for layer, name in enumerate(self.small.layer_names[group]):
                    self.launch(partial(self._see, self.small.tensors[rank][name][place], wanted + layer, what))

    def _see(self, block: Any, wanted: float, what: str) -> None:
        if not bool((block == wanted).all()):
            self.wrong.append(what)

    def kept(self, window: int, computed: int) -> int:
        return max(0, computed - window + 1) // BLOCK_TOKENS if window else 0

    # --- blocks ---

    def take(self, number: int) -> list[int] | None:
        free = [block for block in range(1, BLOCKS) if not self.held[block]]
        if len(free) < number:
            return None
        chosen = self.chance.sample(free, number)
        self.hold(chosen)
        return chosen

    def hold(self, ids: list[int]) -> None:
        self.held.update(ids)

    def free(self, ids: list[int]) -> None:
        self.held.subtract(ids)
        assert all(self.held[block] >= 0 for block in ids)
        gone = {block for block in ids if not self.held[block]}
        self.cached = {name: block for name, block in self.cached.items() if block not in gone}

    def slide(self, running: Running, computed: int) -> None:
        """Blocks that windows have left behind go."""
        for ids, window in zip(running.table, self.windows, strict=True):
            gone = range(min(self.kept(window, computed), len(ids)))
            self.free([ids[block] for block in gone if ids[block]])
            for block in gone:
                ids[block] = 0

    def name(self, one: Request, block: int, group: int) -> bytes:
        return repr((group, one.cache_salt, one.all_token_ids[: (block + 1) * BLOCK_TOKENS])).encode()

    def own_prefix(self, one: Request) -> list[list[int]]:
        """By group; as long as each has what the next token attends to."""
        for full in range((len(one.all_token_ids) - 1) // BLOCK_TOKENS, 0, -1):
            found: list[list[int]] = []
            for group, window in enumerate(self.windows):
                first = self.kept(window, full * BLOCK_TOKENS)
                ids = [self.cached.get(self.name(one, block, group), 0) for block in range(first, full)]
                found.append([0] * first + ids)
                if 0 in ids:
                    break
            else:
                return found
        return [[] for _ in self.windows]

    # --- what happens to requests ---

    def add(self, one: Request) -> None:
        self.requests[one.request_id] = Running(one, answer=self.chance.randrange(1, 40))
        self.small.scheduler.arrived(one)

    def schedule(self, running: Running) -> None:
        one = running.request
        prefix = self.own_prefix(one)
        own = len(prefix[0])
        external = self.small.scheduler.matched(one, own * BLOCK_TOKENS)
        if external is None:
            return
        self.hold([block for ids in prefix for block in ids if block])
        running.table = prefix
        there = own * BLOCK_TOKENS + external
        self.slide(running, there)
        # What a window has left behind already gets no place.
        skipped = [self.kept(window, there) for window in self.windows]
        for ids, skip in zip(prefix, skipped, strict=True):
            ids.extend([0] * (skip - len(ids)))
        needed = -(-len(one.all_token_ids) // BLOCK_TOKENS) + 1
        mine = self.take(sum(needed - len(ids) for ids in prefix))
        if mine is None:
            self.free(running.held)
            running.table = []
            return
        for ids in prefix:
            ids.extend(mine.pop() for _ in range(needed - len(ids)))
        running.computed = own * BLOCK_TOKENS
        self.small.scheduler.allocated(one, running.table, external)
        running.state, running.failed, running.anew = "running", set(), False
        if external:
            running.loading = range(own, own + external // BLOCK_TOKENS)
            if self.small.scheduler.loads_in_step(one.request_id):
                running.in_step, running.computed = True, there
            else:
                running.state, running.waits_for = "loading", self.workers

    def preempt(self, running: Running) -> None:
        self.free(running.held)
        self.preempted.append(running.request.request_id)
        running.table, running.computed, running.state = [], 0, "waiting"
        running.request.num_preemptions += 1

    def end(self, running: Running, aborted: bool) -> None:
        one = running.request
        keep = self.small.scheduler.finished(one, aborted)[0]
        if running.state == "loading":
            running.state = "aborted"  # the places are kept until the workers have reported
            return
        del self.requests[one.request_id]
        if running.table:
            self.slide(running, running.computed)
        if keep:
            self.leaving[one.request_id] = (running.held, self.workers)
        else:
            self.free(running.held)

    # --- a step ---

    def step(self) -> None:
        for running in list(self.requests.values()):
            if running.state == "waiting":
                self.schedule(running)
        scheduled = []
        for running in self.requests.values():
            if running.state == "running" and (running.in_step or self.chance.random() < 0.8):
                self.slide(running, running.computed)
                until, table = self.computed_after(running), [list(ids) for ids in running.table]
                scheduled.append(Scheduled(running.request.request_id, running.computed, until, table, True))
        plan = self.small.scheduler.step(scheduled, self.preempted, sum(one.computed_tokens for one in scheduled))
        self.preempted = []
        for worker in self.small.workers:
            worker.revoke(plan.preempted)
            worker.capture(plan.leaving)
            worker.start_loads(plan)
        self.compute(scheduled)
        for worker in self.small.workers:
            worker.start_saves(plan)
        self.collect(plan)
        if self.device is not None:
            self.device.pass_time(self.chance.randrange(300))
            assert self.device.faults_seen == []
        assert self.wrong == []

    def computed_after(self, running: Running) -> int:
        left = len(running.request.all_token_ids) - running.computed
        return running.computed + (left if left < 3 else self.chance.randrange(1, left + 1))

    def compute(self, scheduled: list[Scheduled]) -> None:
        for rank, block in product(range(self.workers), range(BLOCKS)):
            if not self.held[block]:
                for tensor in self.small.tensors[rank].values():
                    self.launch(partial(tensor[block].fill_, POISON))
        for one in scheduled:
            running = self.requests[one.request_id]
            first, last = running.computed // BLOCK_TOKENS, one.computed_tokens // BLOCK_TOKENS
            right = not running.in_step or self.came(one.request_id)
            if right:
                self.check(running, first)
            for rank, block in product(range(self.workers), range(first, last)):
                for group, ids in enumerate(running.table):
                    value = self.value(running.request, block, rank) if right else 5.0
                    self.fill(ids[block], rank, group, value)
            running.computed = one.computed_tokens

    def came(self, request_id: str) -> bool:
        """Whether a load within this step brought everything, to all workers."""
        loads = [load for worker in self.small.workers for load in worker._layer_loads.values()]
        mine = [load for load in loads if load.plan.request_id == request_id]
        for load in mine:
            for name in self.small.tensors[0]:
                load.wait_for(name)
            load._over.wait()
        return all(load.complete for load in mine)

    def collect(self, plan: object) -> None:
        report, failed = WorkerReport(), set[int]()
        for worker in self.small.workers:
            over = worker.finished(plan)  # type: ignore[arg-type]  # a StepPlan
            failed |= worker.failed_blocks()
            for name in over.failed:
                self.requests[name].anew = True
            report.add(worker.report() or WorkerReport())
            for name in over.received:
                self.requests[name].waits_for -= 1
            for name in over.sent:
                ids, left = self.leaving[name]
                self.leaving[name] = (ids, left - 1)
        self.small.scheduler.reported(report)
        for name in [name for name, (_, left) in self.leaving.items() if not left]:
            self.free(self.leaving.pop(name)[0])
        for running in list(self.requests.values()):
            self.after(running, failed)

    def after(self, running: Running, failed: set[int]) -> None:
        if running.state in ("loading", "aborted"):
            running.failed |= failed & set(running.held)
            if running.waits_for:
                return
            if running.state == "aborted":
                self.free(running.held)
                del self.requests[running.request.request_id]
                return
            if running.anew:
                self.free(running.held)
                running.table, running.computed, running.state = [], 0, "waiting"
                self.lost_loads += 1
                return
            ids = running.table[0]
            good = next((i for i in running.loading if ids[i] in running.failed), running.loading.stop)
            running.computed = min(good * BLOCK_TOKENS, len(running.request.all_token_ids) - 1)
            self.loaded_blocks += good - running.loading.start
            self.check(running, good)
            running.state = "running"
        elif running.in_step:
            running.in_step = False
            ids = running.table[0]
            good = next((i for i in running.loading if ids[i] in failed), running.loading.stop)
            self.loaded_blocks += good - running.loading.start
            if good < running.loading.stop:
                running.computed, self.lost_loads = good * BLOCK_TOKENS, self.lost_loads + 1
        elif running.state == "running" and running.computed >= len(running.request.all_token_ids):
            for group, ids in enumerate(running.table):
                for block in range(running.computed // BLOCK_TOKENS):
                    if ids[block]:
                        self.cached.setdefault(self.name(running.request, block, group), ids[block])
            running.answer -= 1
            room = len(running.table[0]) * BLOCK_TOKENS - len(running.request.all_token_ids)
            if running.answer and room:
                running.request.all_token_ids.append(self.chance.randrange(5))
            else:
                self.end(running, aborted=False)

    def settle(self) -> None:
        """Everything ends, soon."""
        deadline = time.monotonic() + SECONDS
        while self.requests or self.leaving:
            for running in list(self.requests.values()):
                if running.state != "aborted":
                    self.end(running, aborted=True)
            self.step()
            assert time.monotonic() < deadline, f"still there: {list(self.requests)}, {list(self.leaving)}"
        assert not self.small.scheduler.states and not +self.held
        if self.device is not None:
            self.device.finish()
            assert self.device.faults_seen == [] and self.wrong == []
