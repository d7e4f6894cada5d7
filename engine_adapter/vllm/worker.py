"""The worker's side: carries out a step's plan with threads, and says what became of it. Imports no vLLM.

For the worker's thread, which never waits for the daemon (but in a layer-wise load, which is what that is): loads and saves
run in pools of their own.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from mooncask.engine_adapter.vllm.connection import StoreConnection
from mooncask.engine_adapter.vllm.counters import Counters
from mooncask.engine_adapter.vllm.device.copies import BlockCopies
from mooncask.engine_adapter.vllm.kv_groups import KvGroups
from mooncask.engine_adapter.vllm.kv_planes import KvPlanes
from mooncask.engine_adapter.vllm.layer_loading import LayerLoad
from mooncask.engine_adapter.vllm.loading import Load
from mooncask.engine_adapter.vllm.messages import LoadDone, StepPlan, WorkerHello, WorkerReport
from mooncask.engine_adapter.vllm.saving import CaptureRoom, Save
from mooncask.engine_adapter.vllm.settings import ConnectorSettings
from mooncask.engine_adapter.vllm.ways import Ways

log = logging.getLogger(__name__)

WAITERS = 32
"""Loads at a time of what another engine is still computing; each has a thread that mostly waits."""
IDLE_SECONDS = 0.002
"""A step without tokens waits this long for loads and saves, instead of asking again at once."""


@dataclass(slots=True)
class Finished:
    """What ended since the last step."""

    received: set[str] = field(default_factory=set)
    """Requests whose load is over, whether all of it came or not."""
    failed: set[str] = field(default_factory=set)
    """Those of them that are to be computed from their beginning. Empty for an engine that is told blocks."""
    sent: set[str] = field(default_factory=set)
    """Finished requests whose blocks nothing reads any more."""


class WorkerSide:
    def __init__(
        self,
        settings: ConnectorSettings,
        hello: WorkerHello,
        planes: KvPlanes,
        counters: Counters,
        groups: KvGroups,
        writes: bool,
        copies: BlockCopies,
    ) -> None:
        """`copies` are closed with it."""
        self.connection = StoreConnection(settings, f"vllm worker {hello.shard}".strip(), [hello], counters)
        self._ways = Ways(self.connection, planes, counters, copies)
        self._settings, self._groups, self._writes = settings, groups, writes
        self._loaders = ThreadPoolExecutor(settings.threads, "mooncask-load")
        self._waiters = ThreadPoolExecutor(WAITERS, "mooncask-wait")
        """For what is still being computed elsewhere: nobody's load of what is there waits behind that."""
        self._layer_loaders = ThreadPoolExecutor(settings.threads, "mooncask-layers")
        """The step waits for these: not behind loads that nobody waits for."""
        self._savers = ThreadPoolExecutor(1, "mooncask-save")
        self._saves: dict[int, tuple[Save, Future[None]]] = {}
        self._loads: dict[Future[LoadDone], Load] = {}
        self._layer_loads: dict[Future[LoadDone], LayerLoad] = {}
        self._capture_room = CaptureRoom(settings.capture_bytes)
        self._released: set[str] = set()
        self._report = WorkerReport()
        self._failed_blocks: set[int] = set()

    # --- a step ---

    def start_loads(self, plan: StepPlan) -> None:
        """The blocks are the requests' own, and what else writes to them has been launched."""
        after = self._ways.copies.mark() if plan.loads else None
        for one in plan.loads:
            if one.layerwise:
                layers = LayerLoad(one, self._ways, after)
                self._layer_loads[self._layer_loaders.submit(_guarded_load, layers)] = layers
            else:
                load = Load(one, self._ways, after)
                loaders = self._waiters if one.wait_seconds else self._loaders
                self._loads[loaders.submit(_guarded_load, load)] = load

    def wait_for_layer(self, layer: str) -> None:
        """Of what is loaded within this step, this layer is in, or the load has failed."""
        for load in self._layer_loads.values():
            load.wait_for(layer)

    def start_saves(self, plan: StepPlan) -> None:
        """The step's blocks are computed, or all that computes them has been launched; those of a request whose load in this
        step failed are not what they should be."""
        failed = self._end_layer_loads()
        after = self._ways.copies.mark() if plan.saves and self._writes else None
        for one in plan.saves:
            dropped = one.request_id in failed or (self._writes and not self._takes_saves)
            if dropped:
                self._ways.counters.add("dropped_blocks", len(one.keys))
            if dropped or not self._writes:
                self._report.saved[one.number] = 1
                continue
            save = Save(one, self._ways, self._capture_room, after)
            self._saves[one.number] = save, self._savers.submit(_guarded, save.run)

    @property
    def _takes_saves(self) -> bool:
        return len(self._saves) < self._settings.save_backlog_max and self.connection.usable

    def revoke(self, request_ids: Iterable[str]) -> None:
        """Their blocks are somebody else's when this returns."""
        gone = frozenset(request_ids)
        for save, _ in self._saves.values() if gone else ():
            if save.plan.request_id in gone:
                save.revoke()

    def _end_layer_loads(self) -> set[str]:
        """Requests whose load in this step failed."""
        failed: set[str] = set()
        for future, load in self._layer_loads.items():
            self._report.loads.append(future.result())
            if not load.complete:
                failed.add(load.plan.request_id)
                self._failed_blocks.update(load.missing_block_ids)
        self._layer_loads.clear()
        return failed

    def capture(self, leaving: Mapping[str, int]) -> None:
        """What windows have left behind is somebody else's when this returns (`StepPlan.leaving`)."""
        for save, _ in self._saves.values() if leaving else ():
            if save.plan.request_id in leaving:
                save.capture(leaving[save.plan.request_id])

    def finished(self, plan: StepPlan) -> Finished:
        """What ended; failed blocks and the report of the same moment can be asked for afterwards. Raises DeviceFault when
        blocks whose load failed can't be computed anew, since a copy may still be writing to them."""
        self._released |= plan.released
        waiting: list[Future[Any]] = [*self._loads, *(future for _, future in self._saves.values())]
        if not plan.computes and waiting:
            wait(waiting, IDLE_SECONDS, FIRST_COMPLETED)
        over = Finished(sent=self._collect_saves())
        for future in [future for future in self._loads if future.done()]:
            load = self._loads.pop(future)
            over.received.add(load.plan.request_id)
            self._report.loads.append(future.result())
            if load.complete:
                continue
            if self._groups.fail_by_block:
                self._failed_blocks.update(load.missing_block_ids)
            else:
                over.failed.add(load.plan.request_id)
        self._ways.copies.check()
        return over

    def _collect_saves(self) -> set[str]:
        for number in [number for number, (_, future) in self._saves.items() if future.done()]:
            del self._saves[number]
            self._report.saved[number] = 1
        busy = {save.plan.request_id for save, _ in self._saves.values()}
        free = self._released - busy
        self._released &= busy
        return free

    def failed_blocks(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def report(self) -> WorkerReport | None:
        report, self._report = self._report, WorkerReport()
        return report or None

    def close(self) -> None:
        """Ends within the deadlines of calls that are under way; what waits for another engine's computing is cut off."""
        self._waiters.shutdown(wait=False, cancel_futures=True)
        for pool in (self._loaders, self._layer_loaders, self._savers):
            pool.shutdown(wait=True, cancel_futures=True)
        self.connection.close()
        self._waiters.shutdown(wait=True)
        self._ways.copies.close()


def _guarded_load(load: Load) -> LoadDone:
    """A fault of ours must not leave a request waiting."""
    try:
        return load.run()
    except Exception:
        log.exception("a load failed; its blocks are computed")
        return load.done(0.0)


def _guarded(run: Callable[[], None]) -> None:
    try:
        run()
    except Exception:
        log.exception("a save failed")
