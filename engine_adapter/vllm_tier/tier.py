"""The SecondaryTierManager of vLLM 0.32. All of it runs in vLLM's scheduler, so no method here waits for the store.

Look-ups go through vLLM's own AsyncLookupManager: RETRY until its thread has an answer, which is at the latest when the
look-up deadline is over, and then a miss. Transfers run in threads of `transfers.py`, on the rows of vLLM's primary tier.
"""

import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import vllm
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload.base import LookupResult, Medium, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from mooncask.engine_adapter.block_store import BlockStore, StoreAddress, engine_name
from mooncask.engine_adapter.vllm_tier.identity import family_of, key_of, warn_of_seed
from mooncask.engine_adapter.vllm_tier.settings import TierSettings
from mooncask.engine_adapter.vllm_tier.transfers import Done, Rows, Transfers

log = logging.getLogger(__name__)


class MooncaskTier(SecondaryTierManager):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """`{"type": "MooncaskTier", "module_path": "mooncask.engine_adapter.vllm_tier", …}` of `secondary_tiers`."""

    medium: ClassVar[Any] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **settings: Any,
    ) -> None:
        """As vLLM's factory calls it; `settings` are the tier's own in the configuration. Does not connect yet."""
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.settings = TierSettings.read(settings)
        rows = rows_of(primary_kv_view)
        address = StoreAddress(self.settings.socket, self.settings.deadline_seconds, self.settings.mode)
        self._transfers = Transfers(rows, self.settings.threads, self.settings.jobs_max, address.deadline_seconds)
        self._keys: dict[int, list[Any]] = {}
        """vLLM's keys of each load under way."""
        self._row_bytes, self._address = rows.size, address
        self._made: BlockStore | None = None
        self._lookups = _Lookups(self, tier_type)

    @property
    def store(self) -> BlockStore:
        """Made at its first use: vLLM chooses its hash seed after it made the tiers."""
        if self._made is None:
            seed = kv_cache_utils.get_none_hash_seed()
            safe = seed == kv_cache_utils.DEFAULT_NONE_HASH_SEED
            warn_of_seed(safe, os.getenv("PYTHONHASHSEED") is not None)
            config = self._offloading_spec.config
            family = family_of(config, self._row_bytes, vllm.__version__, seed, self.settings.family)
            self._made = BlockStore(self._address, engine_name("vllm tier"), family)
        return self._made

    @property
    def counts(self) -> Mapping[str, int]:
        return self.store.counts

    # --- what vLLM's scheduler calls ---

    def on_new_request(self, req_context: Any) -> Any:
        return RequestOffloadingContext()

    def lookup(self, key: Any, req_context: Any) -> Any:
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def on_schedule_end(self, context: Any) -> None:
        self._lookups.flush()

    def on_request_finished(self, req_context: Any) -> None:
        self._lookups.cleanup(req_context.req_id)

    def submit_store(self, job_metadata: Any) -> None:
        keys = [key_of(key) for key in job_metadata.keys]
        self._transfers.save(self.store, job_metadata.job_id, keys, job_metadata.chunk_ids.tolist())

    def submit_load(self, job_metadata: Any) -> None:
        keys = list(job_metadata.keys)
        self._keys[job_metadata.job_id] = keys
        wanted = [key_of(key) for key in keys]
        self._transfers.load(self.store, job_metadata.job_id, wanted, job_metadata.chunk_ids.tolist())

    def get_finished_jobs(self) -> Iterable[Any]:
        return [self._result(done) for done in self._transfers.collect()]

    def _result(self, done: Done) -> Any:
        """What did not come is a miss for whoever asks next, not only for this request."""
        loaded: tuple[Any, ...] | None = None
        if done.is_load:
            keys = self._keys.pop(done.job, [])
            pairs = list(zip(keys, done.moved, strict=True))
            self._lookups.mark_miss([key for key, came in pairs if not came])
            if not all(done.moved):
                loaded = tuple(key for key, came in pairs if came) or None
        size = sum(done.moved) * self._row_bytes
        return JobResult(done.job, all(done.moved), loaded, done.seconds, size)

    def drain_jobs(self) -> None:
        self._transfers.drain()

    def shutdown(self) -> None:
        """Nothing touches vLLM's memory after this, and no view of it is left here."""
        self._lookups.shutdown()
        self._transfers.close()
        if self._made is not None:
            log.info("mooncask: the tier ends; %s", dict(self._made.counts))
            self._made.close()


class _Lookups(AsyncLookupManager):  # type: ignore[misc]  # as above
    """Asks the store in a thread of its own, a step's questions at a time."""

    def __init__(self, tier: MooncaskTier, tier_type: str) -> None:
        self._tier = tier
        super().__init__(tier_type)

    def batch_lookup(self, keys: list[Any], req_context: Any) -> Iterable[bool]:
        """Mostly the keys of one prompt in order: what follows the prefix is asked for one by one, on this node."""
        store, seconds = self._tier.store, self._tier.settings.lookup_seconds
        wanted = [key_of(key) for key in keys]
        prefix = store.prefix(wanted, seconds)
        return [True] * prefix + store.present(wanted[prefix:], seconds)


def rows_of(view: memoryview) -> Rows:
    """vLLM's primary tier: two dimensions, a row a chunk. Its address is taken and no view is kept: one would keep vLLM's
    shared memory from being closed."""
    assert view.shape is not None and view.strides is not None
    address: int = np.asarray(view).__array_interface__["data"][0]
    return Rows(address, view.strides[0], view.nbytes // view.shape[0])
