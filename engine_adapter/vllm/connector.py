"""What vLLM calls. Thin: it turns vLLM's objects into plain values for `SchedulerSide` and `WorkerSide`, and back.

vLLM makes one in its scheduler's process and one in each worker, which differ by `role`.
"""

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from mooncask.engine_adapter.vllm.connection import StoreConnection
from mooncask.engine_adapter.vllm.counters import Counters
from mooncask.engine_adapter.vllm.device import copies_for
from mooncask.engine_adapter.vllm.extras import LoraDigests, describe
from mooncask.engine_adapter.vllm.family import check_layerwise, check_supported, family_of, groups_of, shard_of
from mooncask.engine_adapter.vllm.kv_planes import KvPlanes
from mooncask.engine_adapter.vllm.messages import StepPlan, WorkerHello, WorkerReport
from mooncask.engine_adapter.vllm.scheduling import Scheduled, SchedulerSide
from mooncask.engine_adapter.vllm.settings import ConnectorSettings
from mooncask.engine_adapter.vllm.stats import MooncaskMetrics, MooncaskStats
from mooncask.engine_adapter.vllm.worker import WorkerSide
from mooncask.engine_adapter.weights import weights_digest
from mooncask.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


@dataclass
class StepMetadata(KVConnectorMetadata):  # type: ignore[misc]  # the checkers' environment has no vLLM
    plan: StepPlan = field(default_factory=StepPlan)


@dataclass
class HelloMetadata(KVConnectorHandshakeMetadata):  # type: ignore[misc]  # the checkers' environment has no vLLM
    hello: WorkerHello


@dataclass
class ReportMetadata(KVConnectorWorkerMetadata):  # type: ignore[misc]  # the checkers' environment has no vLLM
    report: WorkerReport

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "ReportMetadata":
        assert isinstance(other, ReportMetadata)
        self.report.add(other.report)
        return self


class MooncaskConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # the checkers' environment has no vLLM
    """Loads are asynchronous (a request waits, without holding back others, until all its blocks are in), but where
    `load_mode` wants those that can be within the step that computes the request."""

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        """Raises ConfigError for wrong settings, UnsupportedModel for KV that can't be stored."""
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        assert transfer is not None
        _log_like_vllm()
        check_supported(vllm_config)
        self.groups = groups_of(vllm_config, kv_cache_config)
        if transfer.kv_load_failure_policy != "recompute":
            wanted = (
                '"recompute": what the store has lost since it was asked is computed, instead of failing the request'
            )
            raise ConfigError("kv_load_failure_policy", transfer.kv_load_failure_policy, wanted)
        self.settings = ConnectorSettings.parse(transfer.kv_connector_extra_config)
        if self.settings.layerwise:
            check_layerwise(vllm_config, self.groups)
        self.counters = Counters()
        self.scheduler: SchedulerSide | None = None
        self.worker: WorkerSide | None = None
        self._config, self._kv_cache = vllm_config, kv_cache_config
        self._reads, self._writes = transfer.is_kv_consumer, transfer.is_kv_producer
        self._hello: WorkerHello | None = None
        self._cache_manager: KVCacheManager | None = None

    # --- worker ---

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        config = self._config
        groups = [group.layer_names for group in self._kv_cache.kv_cache_groups]
        planes = KvPlanes.of(kv_caches, self._kv_cache.num_blocks, config.model_config.model, groups)
        layers = config.compilation_config.static_forward_context
        family = family_of(
            config, planes, vllm.__version__, {name: layers[name] for name in kv_caches if name in layers}
        )
        tp_rank, pp_rank = _ranks()
        shard = shard_of(config.parallel_config, tp_rank, pp_rank, config.model_config.use_mla)
        block_tokens = config.cache_config.block_size
        namespace = shard.namespace(self.settings.namespace)
        self._hello = WorkerHello(family, shard.name, namespace, planes.block_bytes, block_tokens)
        writes = self._writes and shard.writes
        copies = copies_for(planes.device, planes.block_bytes, self.settings.pinned_bytes)
        self.worker = WorkerSide(self.settings, self._hello, planes, self.counters, self.groups, writes, copies)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return HelloMetadata(self._hello) if self._hello is not None else None

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        if self.worker is not None:
            plan = _plan(kv_connector_metadata)
            self.worker.revoke(plan.preempted)
            self.worker.capture(plan.leaving)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self.worker is not None:
            self.worker.start_loads(_plan(self._get_connector_metadata()))

    def wait_for_layer_load(self, layer_name: str) -> None:
        if self.worker is not None:
            self.worker.wait_for_layer(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """A step's blocks are copied out after it, in threads."""

    def wait_for_save(self) -> None:
        if self.worker is not None:
            self.worker.start_saves(_plan(self._get_connector_metadata()))

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        if self.worker is None:
            return KVConnectorTransferResults()
        over = self.worker.finished(_plan(self._get_connector_metadata()))
        return KVConnectorTransferResults(over.sent, over.received, over.failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self.worker.failed_blocks() if self.worker is not None else set()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        report = self.worker.report() if self.worker is not None else None
        return ReportMetadata(report) if report is not None else None

    # --- scheduler ---

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Until this is called every match is 0."""
        found = [one.hello for _, one in sorted(metadata.items()) if isinstance(one, HelloMetadata)]
        shards = list({hello.shard: hello for hello in found}.values())
        connection = StoreConnection(self.settings, "vllm scheduler", shards, self.counters, copies=False)
        loras = LoraDigests(weights_digest)
        self.scheduler = SchedulerSide(
            connection,
            self.counters,
            lambda request: describe(request, loras),
            self.groups,
            reads=self._reads,
            writes=self._writes,
            hands_over=self._writes and not self._reads,
            workers=len(found),
        )

    def on_new_request(self, request: "Request") -> None:
        if self.scheduler is not None:
            self.scheduler.arrived(request)

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        if self.scheduler is None:
            return 0, False
        tokens = self.scheduler.matched(request, num_computed_tokens)
        return tokens, bool(tokens) and not self.scheduler.loads_in_step(request.request_id)

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        if self.scheduler is not None:
            self.scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def bind_kv_cache_manager(self, kv_cache_manager: "KVCacheManager") -> None:
        self._cache_manager = kv_cache_manager

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> KVConnectorMetadata:
        if self.scheduler is None:
            return StepMetadata()
        tokens = scheduler_output.total_num_scheduled_tokens
        preempted = scheduler_output.preempted_req_ids or ()
        return StepMetadata(self.scheduler.step(_scheduled(scheduler_output), preempted, tokens))

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        meta = connector_output.kv_connector_worker_meta
        if self.scheduler is not None:
            wrong = self.scheduler.reported(meta.report if isinstance(meta, ReportMetadata) else None)
            if wrong and self._cache_manager is not None:
                # vLLM computes them anew, but until then its prefix cache would give them to others.
                self._cache_manager.evict_blocks(wrong)

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: "Request", block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        if self.scheduler is None:
            return False, None
        return self.scheduler.finished(request, _was_aborted(request))

    def reset_cache(self) -> bool:
        if self.scheduler is not None:
            self.scheduler.reset()
        return True

    # --- both ---

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return ConnectorSettings.parse(extra_config).layerwise

    def get_kv_connector_stats(self) -> MooncaskStats | None:
        new = self.counters.take()
        return MooncaskStats(data=new) if new else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> MooncaskStats:
        return MooncaskStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, *args: Any, **kwargs: Any) -> MooncaskMetrics:
        return MooncaskMetrics(*args, **kwargs)

    def shutdown(self) -> None:
        for side in (self.scheduler, self.worker):
            if side is not None:
                side.close()
        self.scheduler = self.worker = None


def _log_like_vllm() -> None:
    """vLLM shows its own loggers only; what this package says belongs beside them."""
    ours = logging.getLogger("mooncask.engine_adapter")
    if not ours.handlers and not logging.getLogger().handlers:
        ours.handlers = list(logging.getLogger("vllm").handlers)
        ours.setLevel(logging.getLogger("vllm").level)
        ours.propagate = False


def _plan(metadata: KVConnectorMetadata) -> StepPlan:
    assert isinstance(metadata, StepMetadata)
    return metadata.plan


def _scheduled(output: "SchedulerOutput") -> list[Scheduled]:
    tokens, found = output.num_scheduled_tokens, []
    for new in output.scheduled_new_reqs:
        before = new.num_computed_tokens
        found.append(Scheduled(new.req_id, before, before + tokens[new.req_id], new.block_ids, True))
    cached = output.scheduled_cached_reqs
    columns = zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True)
    for request_id, block_ids, before in columns:
        resumed = request_id in cached.resumed_req_ids
        found.append(Scheduled(request_id, before, before + tokens[request_id], block_ids or (), resumed))
    return found


def _was_aborted(request: "Request") -> bool:
    from vllm.v1.request import RequestStatus

    return bool(request.status == RequestStatus.FINISHED_ABORTED)


def _ranks() -> tuple[int, int]:
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    return get_tp_group().rank_in_group, get_pp_group().rank_in_group
