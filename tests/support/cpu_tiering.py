"""vLLM's TieringOffloadingSpec on a CPU: only the worker that copies between GPU and host memory is another one.

vLLM's own refuses to start without a GPU. With `spec_name` CpuTieringSpec and `spec_module_path` cpu_tiering, its scheduler
side (primary tier, secondary tiers, look-ups, promotions) runs as it is. One KV block a chunk.
"""

import time
from typing import Any

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CpuCopies(OffloadingWorker):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """Copies at once, so that every job is finished when it was submitted."""

    def __init__(self, kv_caches: Any, region: Any) -> None:
        self._region = region
        self._caches = [one.tensor for one in kv_caches.tensors]
        self._rows = [region.create_next_worker_view(one.page_size_bytes) for one in kv_caches.tensors]
        self._done: list[Any] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, src_spec.block_ids, dst_spec.block_ids, store=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, dst_spec.block_ids, src_spec.block_ids, store=False)

    def _copy(self, job_id: int, blocks: Any, rows: Any, *, store: bool) -> bool:
        began, size = time.perf_counter(), 0
        for block, row in zip(blocks.tolist(), rows.tolist(), strict=True):
            for cache, host in zip(self._caches, self._rows, strict=True):
                source, target = (cache[block], host[row]) if store else (host[row], cache[block])
                target.copy_(source)
                size += source.numel()
        self._done.append(TransferResult(job_id, True, size, time.perf_counter() - began))
        return True

    def get_finished(self) -> list[Any]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is ever under way."""

    def shutdown(self) -> None:
        self._rows = []
        self._region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):  # type: ignore[misc]  # as above
    def get_worker(self, kv_caches: Any) -> Any:
        assert self.blocks_per_chunk == 1
        if not self._worker:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = CpuCopies(kv_caches, region)
        return self._worker
