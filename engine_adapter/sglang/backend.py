"""HiCacheStorage on Mooncask: what SGLang 0.5.23's storage threads call, and nothing of what they decide.

Three forms of the same calls are answered: whole tensors (get, set), pages of the registered pool by their indices (v1) and
pages of several pools (v2). Every pool has a namespace of its own, since its pages have a layout of their own. No call
raises for what the store can't do, and none takes longer than the deadline: SGLang then computes.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import sglang
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolName, PoolTransferResult

from mooncask.engine_adapter.block_store import BlockStore, engine_name
from mooncask.engine_adapter.sglang.identity import SHARDED_POOLS, model_fields, pool_fields, shard_of
from mooncask.engine_adapter.sglang.keys import PoolPages, key_of, place_of, usable
from mooncask.engine_adapter.sglang.pages import FLAT, HostPages
from mooncask.engine_adapter.sglang.settings import read_settings
from mooncask.engine_adapter.spans import span_of

log = logging.getLogger(__name__)

KV = "kv"
CLEAR_SECONDS = 30.0


class MooncaskHiCache(HiCacheStorage):  # type: ignore[misc]  # SGLang is not installed where types are checked
    """One rank's storage backend. SGLang calls it from its prefetch and backup threads at once."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        """As SGLang's factory calls a dynamic backend. Connects when the first page is asked for or stored."""
        self.config = storage_config
        self.settings = read_settings(storage_config.extra_config)
        self._model = model_fields(
            storage_config.model_name, _server_args(), getattr(sglang, "__version__", "0"), self.settings.family
        )
        self._pools: dict[str, HostPages] = {}
        self._stores: dict[tuple[str, str], BlockStore] = {}
        self._making = threading.Lock()
        self._meter = Meter(storage_config.enable_storage_metrics)
        if storage_config.should_split_heads:
            log.warning("mooncask: tp_lcm_size is not used: only ranks of equal tensor parallelism share pages")

    # --- pools ---

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._pools[KV] = HostPages(mem_pool_host, "" if self.settings.zero_copy else FLAT)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = str(host_pool_name)
        if name != KV or KV not in self._pools:
            self._pools[name] = HostPages(host_pool)

    def _store(self, pool: str) -> BlockStore | None:
        """The namespace of a pool, made when it is first needed; None for a pool that was never registered."""
        pages = self._pools.get(pool)
        if pages is None:
            log.warning("mooncask: SGLang asked for pool %r, which it did not register: nothing is stored of it", pool)
            return None
        where = (pool, pages.form)
        with self._making:
            if where not in self._stores:
                family = self._model | pool_fields(pool, pages.pool, pages.form, self.config.pp_size)
                shard = shard_of(self.config, pool)
                self._stores[where] = BlockStore(self.settings.address, engine_name("sglang"), family, shard)
            return self._stores[where]

    def _writes(self, pool: str) -> bool:
        """Of equal copies one rank stores its own; a pool that is split is stored by all."""
        return bool(self.config.is_storage_writer) or pool in SHARDED_POOLS

    # --- one tensor a page ---

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """The targets that were filled, None for the others."""
        store = self._store(KV)
        if store is None or target_locations is None or any(target is None for target in target_locations):
            return [None] * len(keys)
        began = time.perf_counter()
        spans = [[span_of(target, writable=True)] for target in target_locations]
        loaded = store.read([key_of(key) for key in keys], spans)
        self._meter.prefetched(sum(loaded), sum(s[0].size for s, ok in zip(spans, loaded, strict=True) if ok), began)
        return [target if came else None for target, came in zip(target_locations, loaded, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        store = self._store(KV)
        if store is None or values is None:
            return False
        if not self._writes(KV):
            return True
        began = time.perf_counter()
        tensors = [value.contiguous() for value in values]
        spans = [[span_of(tensor)] for tensor in tensors]
        place = place_of(None, self._pools[KV].page_tokens)
        stored = store.write([key_of(key) for key in keys], spans, place)
        self._meter.backed_up(sum(stored), sum(s[0].size for s, ok in zip(spans, stored, strict=True) if ok), began)
        return all(stored)

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many pages from the first on are stored."""
        pages, store = self._pools.get(KV), self._store(KV)
        if store is None or pages is None:
            return 0
        return len(keys) if pages.logical else store.prefix([key_of(key) for key in keys])

    # --- pages of the registered pool (interface_v1) ---

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._load(KV, keys, host_indices)

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._save(KV, keys, host_indices, extra_info)

    # --- pages of several pools ---

    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        kv_pages = self.batch_exists(keys, extra_info)
        asked = [key_of(key) for key in keys[:kv_pages]]
        found = usable(kv_pages, [pool for t in pool_transfers or [] if (pool := self._present(t, asked))])
        by_pool = {PoolName(name): pages for name, pages in found.by_pool.items()}
        hits = ({PoolName.KV: kv_pages} if kv_pages else {}) | by_pool
        return PoolTransferResult(found.pages, hits, found.lengths)

    def _present(self, transfer: Any, asked: Sequence[bytes]) -> PoolPages | None:
        """What a pool has of these pages; None for a policy under which it never limits the KV's own hit."""
        if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
            return None
        store = self._store(str(transfer.name))
        present = store.present(asked) if store is not None else [False] * len(asked)
        trailing = max(1, len(transfer.keys or ())) if transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES else None
        return PoolPages(str(transfer.name), present, trailing)

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[Any, list[bool]]:
        return {t.name: self._load(str(t.name), t.keys or [], t.host_indices) for t in transfers}

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[Any, list[bool]]:
        return {t.name: self._save(str(t.name), t.keys or [], t.host_indices, extra_info) for t in transfers}

    def _load(self, pool: str, keys: Sequence[str], indices: Any) -> list[bool]:
        store = self._ready(pool, keys, indices)
        if store is None:
            return [False] * len(keys)
        pages, began = self._pools[pool], time.perf_counter()
        if pages.logical or not keys:
            return [True] * len(keys)
        targets, settle = pages.targets(len(keys), indices)
        loaded = store.read([key_of(key) for key in keys], targets)
        settle(loaded)
        self._meter.prefetched(sum(loaded), sum(s.size for t in targets for s in t), began)
        return loaded

    def _save(self, pool: str, keys: Sequence[str], indices: Any, extra_info: Any) -> list[bool]:
        store = self._ready(pool, keys, indices)
        if store is None:
            return [False] * len(keys)
        pages, began = self._pools[pool], time.perf_counter()
        if pages.logical or not keys or not self._writes(pool):
            return [True] * len(keys)
        sources, keep = pages.sources(len(keys), indices)
        place = place_of(getattr(extra_info, "prefix_keys", None), pages.page_tokens)
        stored = store.write([key_of(key) for key in keys], sources, place)
        del keep
        self._meter.backed_up(sum(stored), sum(s.size for t in sources for s in t), began)
        return stored

    def _ready(self, pool: str, keys: Sequence[str], indices: Any) -> BlockStore | None:
        store = self._store(pool)
        if store is None or self._pools[pool].fits(len(keys), indices):
            return store
        tokens = self._pools[pool].page_tokens
        log.error("mooncask: %d pages of pool %r need %d indices each; others were given", len(keys), pool, tokens)
        return None

    # --- the rest ---

    def clear(self) -> bool:
        """Deletes what this rank's namespaces hold, for all who share them."""
        cleared = [
            store.clear(CLEAR_SECONDS) for store in list(self._stores.values())
        ]  # each of them, whatever one says
        return all(cleared)

    def get_stats(self) -> Any:
        return self._meter.take()

    @property
    def counts(self) -> Counter[str]:
        """What was asked, found, loaded and stored in blocks, and every fault by its name, over all pools."""
        return sum((store.counts for store in self._stores.values()), Counter())

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


class Meter:
    """SGLang's StorageMetrics: pages a call and GB/s a call since they were taken last. Bounded by what is taken."""

    CALLS_MAX = 10_000

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._prefetched: list[tuple[int, float]] = []
        self._backed_up: list[tuple[int, float]] = []

    def prefetched(self, pages: int, size_bytes: int, began: float) -> None:
        self._note(self._prefetched, pages, size_bytes, began)

    def backed_up(self, pages: int, size_bytes: int, began: float) -> None:
        self._note(self._backed_up, pages, size_bytes, began)

    def _note(self, calls: list[tuple[int, float]], pages: int, size_bytes: int, began: float) -> None:
        if self._wanted and pages and len(calls) < self.CALLS_MAX:
            calls.append((pages, size_bytes / 1e9 / max(time.perf_counter() - began, 1e-9)))

    def take(self) -> Any:
        if not self._wanted:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics

        read, self._prefetched = self._prefetched, []
        written, self._backed_up = self._backed_up, []
        return StorageMetrics(
            [pages for pages, _ in read],
            [pages for pages, _ in written],
            [rate for _, rate in read],
            [rate for _, rate in written],
        )


def _server_args() -> Any:
    """The server's arguments; None outside of a server, as in tests."""
    from sglang.srt.runtime_context import get_server_args

    try:
        return get_server_args()
    except (ValueError, AttributeError):
        return None
