"""What the vLLM connector's two sides need of an engine, in plain torch: workers with a paged KV cache, and a scheduler's steps.

Not vLLM and no model: the sides' contract, for any number of workers. tests/engines has the real engine.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import torch

from mooncask.engine_adapter.vllm.connection import StoreConnection
from mooncask.engine_adapter.vllm.counters import Counters
from mooncask.engine_adapter.vllm.device.copies import BlockCopies
from mooncask.engine_adapter.vllm.device.host import HostCopies
from mooncask.engine_adapter.vllm.key_chain import BlockExtras
from mooncask.engine_adapter.vllm.kv_groups import KvGroups
from mooncask.engine_adapter.vllm.kv_planes import KvPlanes
from mooncask.engine_adapter.vllm.messages import StepPlan, WorkerHello, WorkerReport
from mooncask.engine_adapter.vllm.scheduling import Scheduled, SchedulerSide
from mooncask.engine_adapter.vllm.settings import ConnectorSettings
from mooncask.engine_adapter.vllm.shards import Shard
from mooncask.engine_adapter.vllm.worker import WorkerSide

BLOCK_TOKENS = 16
BLOCKS = 40
SECONDS = 20.0


@dataclass
class Request:
    """As vLLM's."""

    request_id: str
    all_token_ids: list[int]
    num_prompt_tokens: int = 0
    num_preemptions: int = 0
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    skip_reading_prefix_cache: bool = False

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.num_prompt_tokens or len(self.all_token_ids)


@dataclass
class Ended:
    received: list[set[str]] = field(default_factory=list)
    sent: list[set[str]] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)
    failed_requests: set[str] = field(default_factory=set)
    wrong: set[int] = field(default_factory=set)
    """Blocks that the engine is not to give to others."""


class SmallEngine:
    """One scheduler and `workers` tensor-parallel workers, all in this process."""

    def __init__(
        self,
        socket: str,
        workers: int = 1,
        role: str = "both",
        model: str = "m",
        seed: int = 0,
        blocks: int = BLOCKS,
        windows: tuple[int, ...] = (0,),
        layers: int = 0,
        copies: BlockCopies | None = None,
        **settings: Any,
    ) -> None:
        """`windows`: of the KV cache groups, one layer after another in each of them; their tensors lie over one another."""
        chosen = ConnectorSettings.parse({"socket": socket, "load": "always", **settings})
        self.counters = Counters()
        torch.manual_seed(seed)
        self.groups = KvGroups(BLOCK_TOKENS, windows)
        rounds = layers or (3 if len(windows) == 1 else 2)
        self.layer_names = [[f"layers.{i * len(windows) + g}" for i in range(rounds)] for g in range(len(windows))]
        self.tensors = [self._tensors(blocks, rounds) for _ in range(workers)]
        family = {"engine": "small", "model": model, "block_tokens": str(BLOCK_TOKENS)}
        self.workers: list[WorkerSide] = []
        hellos: list[WorkerHello] = []
        for rank, tensors in enumerate(self.tensors):
            planes, shard = KvPlanes.of(tensors, blocks, "m", self.layer_names), Shard(rank, workers)
            hellos.append(WorkerHello(family, shard.name, "", planes.block_bytes, BLOCK_TOKENS))
            host, writes = copies or HostCopies(), role != "reads"
            self.workers.append(WorkerSide(chosen, hellos[-1], planes, self.counters, self.groups, writes, host))
        self.describe: Callable[[Any], tuple[BlockExtras, str]] = lambda _: (BlockExtras(), "")
        self.scheduler = SchedulerSide(
            StoreConnection(chosen, "small engine", hellos, self.counters, copies=False),
            self.counters,
            lambda request: self.describe(request),
            self.groups,
            reads=role != "writes",
            writes=role != "reads",
            hands_over=role == "writes",
            workers=workers,
        )
        self.connected()

    def _tensors(self, blocks: int, rounds: int) -> dict[str, torch.Tensor]:
        """One worker's, by layer; layers of different groups in one memory."""
        memory = [torch.randn(blocks, 2, BLOCK_TOKENS, 8) for _ in range(rounds)]
        return {name: memory[i] for names in self.layer_names for i, name in enumerate(names)}

    def connected(self) -> None:
        """An attempt that was late is made again, as for a request that comes."""
        until(self.scheduler.requests._connected, "connected")

    def matched(self, request: Request, computed_tokens: int = 0) -> int:
        found: list[int] = []

        def answered() -> bool:
            tokens = self.scheduler.matched(request, computed_tokens)
            found.extend([] if tokens is None else [tokens])
            return tokens is not None

        until(answered, "answered")
        return found[0]

    def compute(self, request: Request, block_ids: list[int], tokens: int | None = None) -> StepPlan:
        """A step that computes the request's tokens up to `tokens`, in an engine of one KV cache group."""
        return self.compute_table(request, [block_ids], tokens)

    def compute_table(
        self, request: Request, table: list[list[int]], tokens: int | None = None, before: int = 0
    ) -> StepPlan:
        """The same of any, of what follows the first `before` tokens."""
        computed = len(request.all_token_ids) if tokens is None else tokens
        return self.step([Scheduled(request.request_id, before, computed, table, True)], tokens=computed - before)

    def step(
        self, scheduled: list[Scheduled] | None = None, preempted: tuple[str, ...] = (), tokens: int = 0
    ) -> StepPlan:
        """Plans, and the workers' part of it, as vLLM orders it."""
        plan = self.scheduler.step(scheduled or [], preempted, tokens)
        for worker in self.workers:
            worker.revoke(plan.preempted)
            worker.capture(plan.leaving)
            worker.start_loads(plan)
            worker.start_saves(plan)
        return plan

    def collect(self, plan: StepPlan | None = None) -> Ended:
        """What the workers finished, told to the scheduler."""
        ended, report = Ended(), WorkerReport()
        for worker in self.workers:
            over = worker.finished(plan or StepPlan())
            ended.received.append(over.received)
            ended.sent.append(over.sent)
            ended.failed_requests |= over.failed
            ended.failed |= worker.failed_blocks()
            report.add(worker.report() or WorkerReport())
        ended.wrong = self.scheduler.reported(report)
        return ended

    def settle(self) -> Ended:
        """Until every load and save is over; all that ended on the way."""
        whole = Ended([set() for _ in self.workers], [set() for _ in self.workers])

        def over() -> bool:
            now = self.collect()
            for rank in range(len(self.workers)):
                whole.received[rank] |= now.received[rank]
                whole.sent[rank] |= now.sent[rank]
            whole.failed.update(now.failed)
            whole.failed_requests |= now.failed_requests
            whole.wrong |= now.wrong
            return not any(worker._loads or worker._saves for worker in self.workers)

        until(over, "settled")
        return whole

    def block(self, rank: int, block_id: int) -> list[torch.Tensor]:
        return [tensor[block_id].clone() for tensor in self.tensors[rank].values()]

    def close(self) -> None:
        self.scheduler.close()
        for worker in self.workers:
            worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, f"not {what} within {SECONDS} s"
        time.sleep(0.002)
