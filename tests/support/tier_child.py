"""A process with vLLM's own tiering classes: its factory of secondary tiers, and whole engines on CPU (`cpu_tiering.py`).

Commands as in `sglang_child.py`. Runs under the interpreter that has vLLM.
"""

import mmap
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import numpy as np
from answer_lines import answer_lines
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

TIER = {"type": "MooncaskTier", "module_path": "mooncask.engine_adapter.vllm_tier"}
ROWS, ROW_BYTES = 16, 8192
WAIT_SECONDS = 20.0


class Tier:
    """A secondary tier as vLLM's factory makes it, over memory that is mapped as vLLM's primary tier is."""

    def __init__(self, settings: dict[str, Any], model: str) -> None:
        self.memory = mmap.mmap(-1, ROWS * ROW_BYTES)
        self.view = memoryview(self.memory).cast("b", (ROWS, ROW_BYTES))
        parallel = OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False)
        config = OffloadingConfig(
            (OffloadingGroupConfig(16, ("a", "b"), 0),), ROW_BYTES, False, {}, "an engine",
            OffloadingModelConfig(model, "float32"), OffloadingCacheConfig(16, 1), parallel,
        )  # fmt: skip
        spec = SimpleNamespace(config=config, blocks_per_chunk=1, kv_events_config=None)
        self.tier = SecondaryTierFactory.create_secondary_tier({**TIER, **settings}, self.view, spec)
        self._jobs = 0

    def job(self, words: list[str], rows: list[int], *, load: bool) -> TransferJob:
        self._jobs += 1
        keys = [key(word) for word in words]
        return TransferJob(self._jobs, keys, np.array(rows, np.int32), load, ReqContext(req_id="a request"))

    def finish(self) -> Any:
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            for done in self.tier.get_finished_jobs():
                return done
        raise TimeoutError("a job never finished")


def key(word: str, group: int = 0) -> Any:
    return make_offload_key(word.encode().ljust(32, b"."), group)


class Commands:
    def __init__(self) -> None:
        init_none_hash(hash)
        self.tiers: dict[str, Tier] = {}
        self.llm: Any = None

    def make(self, tier: str, settings: dict[str, Any], model: str) -> None:
        self.tiers[tier] = Tier(settings, model)

    def fill(self, tier: str, row: int, value: int) -> None:
        np.asarray(self.tiers[tier].view)[row] = value

    def rows(self, tier: str) -> list[int]:
        """The first byte of each row; -1 where a row is not of one value."""
        memory = np.asarray(self.tiers[tier].view)
        return [int(row[0]) if (row == row[0]).all() else -1 for row in memory]

    def store(self, tier: str, words: list[str], rows: list[int]) -> list[Any]:
        one = self.tiers[tier]
        began = time.monotonic()
        one.tier.submit_store(one.job(words, rows, load=False))
        submitted = time.monotonic() - began
        done = one.finish()
        return [done.success, done.transfer_bytes, submitted]

    def load(self, tier: str, words: list[str], rows: list[int]) -> list[Any]:
        one = self.tiers[tier]
        one.tier.submit_load(one.job(words, rows, load=True))
        done = one.finish()
        names = {key(word): word for word in words}
        return [done.success, None if done.successful_keys is None else [names[one] for one in done.successful_keys]]

    def lookup(self, tier: str, words: list[str], request: str) -> list[Any]:
        """Steps as vLLM's scheduler does until nothing is to be retried: hits, the longest step, seconds in all."""
        one, context = self.tiers[tier], ReqContext(req_id=request)
        began, longest = time.monotonic(), 0.0
        while True:
            step = time.monotonic()
            found = [one.tier.lookup(key(word), context) for word in words]
            one.tier.on_schedule_end(None)
            longest = max(longest, time.monotonic() - step)
            if LookupResult.RETRY not in found:
                one.tier.on_request_finished(context)
                return [[result is LookupResult.HIT for result in found], longest, time.monotonic() - began]
            if time.monotonic() - began > WAIT_SECONDS:
                raise TimeoutError("a look-up is retried for ever")
            time.sleep(0.001)

    def counts(self, tier: str) -> dict[str, int]:
        return dict(self.tiers[tier].tier.counts)

    def shutdown(self, tier: str) -> None:
        """And the memory can be unmapped: no view of it is left."""
        one = self.tiers.pop(tier)
        one.tier.drain_jobs()
        one.tier.shutdown()
        one.tier._primary_kv_view = one.view = None
        one.memory.close()

    # --- a whole engine ---

    def engine(self, model: str, tiers: list[dict[str, Any]]) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        transfer = KVTransferConfig(
            kv_connector="OffloadingConnector",
            kv_role="kv_both",
            kv_connector_extra_config={
                "spec_name": "CpuTieringSpec",
                "spec_module_path": "cpu_tiering",
                "cpu_bytes_to_use": 128 << 20,
                "block_size": 32,
                "secondary_tiers": tiers,
            },
        )
        self.llm = LLM(
            model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=1536,
            max_num_seqs=2,
            block_size=32,
            kv_transfer_config=transfer,
            disable_log_stats=False,
        )

    def generate(self, prompt: list[int]) -> dict[str, Any]:
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        (answer,) = self.llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        return {"tokens": list(answer.outputs[0].token_ids), "cached": answer.num_cached_tokens}

    def tier_counts(self) -> dict[str, int]:
        """After all that was submitted has ended."""
        (tier,) = self._tiers()
        tier.drain_jobs()
        return dict(getattr(tier, "counts", {}))

    def _tiers(self) -> list[Any]:
        scheduler = self.llm.llm_engine.engine_core.engine_core.scheduler
        manager = scheduler.connector.connector_scheduler.manager
        return list(manager.secondary_tiers)

    def stop(self) -> list[str]:
        """Ends the engine; what it left in shared memory."""
        before = {path.name for path in Path("/dev/shm").glob("vllm_offload_*")}
        self.llm.llm_engine.engine_core.shutdown()
        assert before, "the engine had no shared memory"
        return sorted(path.name for path in Path("/dev/shm").glob("vllm_offload_*") if path.name in before)


if __name__ == "__main__":
    answer_lines(Commands())
    os._exit(0)  # vLLM's threads may still run
