"""One run of `mooncask bench pipeline`: the same prompts prefilled by one process and by several that share the layers.

Every process computes with one thread. The ones that wait sleep, so runs disturb each other only by the memory they hold; those
that are compared follow each other prompt by prompt. Every pipeline stores under a salt of its own, so that nobody finds
another's blocks; afterwards all blocks are compared, to the bit, with those of one process, and forgotten.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch
from transformers.utils import logging as transformers_logging

from mooncask.engine_adapter.transformers.engine import Engine, Options
from mooncask.engine_adapter.transformers.loading import LoadPolicy
from mooncask.engine_adapter.transformers.model import Model, load_model
from mooncask.engine_adapter.transformers.pipeline.head import PipelineHead
from mooncask.engine_adapter.transformers.pipeline.job import PipelineJob
from mooncask.engine_adapter.transformers.pipeline.stage import own_bytes
from mooncask.engine_adapter.transformers.pipeline.stages import StagePlan
from mooncask.engine_adapter.transformers.prefill import WholeModel
from mooncask.engine_adapter.transformers.store_link import StoreAddress, StoreLink
from mooncask.errors import Busy
from mooncask.tools.bench.daemon_process import DaemonProcess
from mooncask.tools.bench.pipeline_result import PipelinePlan, Row, Run

DEADLINE_SECONDS = 30.0
COMPARED_AT_A_TIME = 32
ROOM = 1.5
"""Of what all pipelines together store of one prompt: an arena cannot be filled to its last byte."""


def run(plan: PipelinePlan, model: Path, folder: Path, progress: Callable[[str], None]) -> list[Row]:
    """`folder` is its own. Raises Busy when the store had no room for all blocks."""
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers' own
    progress("loading the model in one process, and its parts in others")
    loaded = load_model(model, "float32", plan.block_tokens)
    size = int(ROOM * len(plan.stages) * plan.tokens * loaded.layout.token_bytes) + (64 << 20)
    settings = {"dram_capacity": str(size), "http_enabled": "false", "ghosts_enabled": "false"}
    with DaemonProcess(folder, settings) as daemon:
        store = StoreAddress(str(daemon.socket), mode="memory", deadline_seconds=DEADLINE_SECONDS)
        with _Bench.over(plan, model, loaded, store, progress) as bench:
            return bench.rows()


class _Bench:
    def __init__(
        self,
        plan: PipelinePlan,
        whole: WholeModel,
        heads: dict[int, PipelineHead],
        progress: Callable[[str], None],
    ) -> None:
        self._plan, self._whole, self._heads, self._progress = plan, whole, heads, progress

    @classmethod
    @contextmanager
    def over(
        cls, plan: PipelinePlan, folder: Path, model: Model, store: StoreAddress, progress: Callable[[str], None]
    ) -> Iterator["_Bench"]:
        """With one process's model here, and the pipelines' processes started."""
        options = Options(plan.prefill_chunk, LoadPolicy.NEVER)
        with ExitStack() as stack:
            heads = {}
            for stages in plan.stages:
                if stages > 1:
                    heads[stages] = PipelineHead(
                        StagePlan(folder, model, stages, store, f"pipeline of {stages}", threads=1), options
                    )
                    stack.callback(heads[stages].close)
            engine = Engine(model, StoreLink(store, "bench pipeline", model.family, model.layout), options)
            stack.callback(engine.close)
            engine.warm_up()
            for head in heads.values():
                head.warm_up()
            yield cls(plan, WholeModel(engine), heads, progress)

    def rows(self) -> list[Row]:
        runs: dict[int, list[Run]] = {stages: [] for stages in self._plan.stages}
        equal = dict.fromkeys(self._plan.stages, True)
        # The first prompt touches every buffer once and counts for nothing.
        for repeat in range(self._plan.repeats + 1):
            tokens = self._prompt(repeat)
            for stages in self._plan.stages:
                found = self._prefill(stages, tokens)
                self._progress(f"prompt {repeat} of {self._plan.repeats} by {stages}: {found.seconds:.2f} s")
                if repeat:
                    runs[stages].append(found)
            for stages in self._plan.stages:
                equal[stages] &= self._compared(stages, tokens)
            self._forget(tokens)
        weights = {stages: self._weights(stages) for stages in self._plan.stages}
        return [
            Row(stages, self._plan.tokens, runs[stages], weights[stages], equal[stages]) for stages in self._plan.stages
        ]

    def _prompt(self, seed: int) -> list[int]:
        vocabulary = self._whole.model.vocabulary
        return [int(token) for token in np.random.default_rng(seed).integers(2, vocabulary, self._plan.tokens)]

    def _prefill(self, stages: int, tokens: list[int]) -> Run:
        engine = self._whole if stages == 1 else self._heads[stages]
        session = engine.link.session()
        keys = session.keys(tokens, _salt(stages))
        job = engine.job(session, tokens, keys, lambda: True)
        started, cpu_started = time.perf_counter(), time.process_time()
        job.run(session.match(keys))
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        if job.stored != len(keys):
            raise Busy(f"places for {len(keys)} blocks", 0.0)
        if isinstance(job, PipelineJob):
            return Run(seconds, job.times.cpu_seconds, job.times.own_bytes)
        return Run(seconds, [[cpu_seconds]], [own_bytes()])

    def _compared(self, stages: int, tokens: list[int]) -> bool:
        """Whether all its blocks are those of one process."""
        client, namespace = self._whole.link.connect()
        session = self._whole.link.session()
        ours, theirs = session.keys(tokens, _salt(1)), session.keys(tokens, _salt(stages))
        for start in range(0, len(ours), COMPARED_AT_A_TIME):
            some = slice(start, start + COMPARED_AT_A_TIME)
            with client.acquire(namespace, ours[some]) as left, client.acquire(namespace, theirs[some]) as right:
                for one, other in zip(left, right, strict=True):
                    if one is None or other is None or one.memory != other.memory:
                        return False
        return True

    def _forget(self, tokens: list[int]) -> None:
        client, namespace = self._whole.link.connect()
        session = self._whole.link.session()
        for stages in self._plan.stages:
            client.evict(namespace, session.keys(tokens, _salt(stages)))

    def _weights(self, stages: int) -> list[int]:
        if stages == 1:
            return [_weight_bytes(self._whole.model)]
        return [up.weight_bytes for up in self._heads[stages].stages.up]


def _weight_bytes(model: Model) -> int:
    return sum(weight.nbytes for weight in model.module.parameters())


def _salt(stages: int) -> str:
    return f"by {stages} processes"
