"""A process with SGLang's own classes: its storage factory, its host pools, its cache controller's page functions.

Reads a JSON list [command, {arguments}] a line from stdin and answers each with a JSON line, {"error": text} for what was
raised. Ends with its stdin. Pages are named by letters here; each is SGLang's own hash of tokens made from the letter.
"""

import os
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import absent_modules

absent_modules.install()

import torch
from answer_lines import answer_lines
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.pool_host import base as pool_base
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.storage import StorageBackendFactory
from sglang.srt.mem_cache.utils import get_hash_str

pool_base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0  # SGLang wants 10 GiB free beside a pool, and these have kilobytes
PAGE, LAYERS, HEADS, HEAD_DIM, PAGES = 16, 4, 2, 32, 12
FAILURES = "SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE"
"""SGLang's own switch: the share of calls that its injector has fail."""
BACKEND = {
    "backend_name": "mooncask",
    "module_path": "mooncask.engine_adapter.sglang",
    "class_name": "MooncaskHiCache",
}


def host_pool(layout: str, dtype: torch.dtype = torch.float32) -> Any:
    def layers() -> tuple[torch.Tensor, ...]:
        return tuple(torch.zeros(PAGE, HEADS, HEAD_DIM, dtype=dtype) for _ in range(LAYERS))

    k, v = layers(), layers()
    pointers = [torch.tensor([t.data_ptr() for t in side], dtype=torch.uint64) for side in (k, v)]
    buffers = KVBuffers(k=k, v=v, k_data_ptrs=pointers[0], v_data_ptrs=pointers[1], layout=next(iter(KVBufferLayout)))
    info = MHABufferInfo(
        buffers=buffers,
        page_size=PAGE,
        head_num=HEADS,
        head_dim=HEAD_DIM,
        v_head_dim=HEAD_DIM,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    return MHATokenToKVPoolHost(
        info,
        1.0,
        0,
        PAGE,
        layout,
        pin_memory=False,
        device_capacity_tokens=PAGE,
        start_layer=0,
        end_layer=LAYERS,
        host_token_capacity=PAGES * PAGE,
    )


class Rank:
    """One tensor-parallel rank: a backend as SGLang makes it and the pools it registers."""

    def __init__(
        self,
        socket: str,
        layout: str,
        zero_copy: bool,
        dtype: str,
        failures: float,
        extra: dict[str, Any],
        config: dict[str, Any],
    ) -> None:
        settings = {**BACKEND, "socket": socket, "interface_v1": int(zero_copy), **extra}
        self.config = HiCacheStorageConfig(
            **{
                "tp_rank": 0,
                "tp_size": 1,
                "pp_rank": 0,
                "pp_size": 1,
                "attn_cp_rank": 0,
                "attn_cp_size": 1,
                "is_mla_model": False,
                "enable_storage_metrics": False,
                "is_page_first_layout": layout == "page_first",
                "model_name": "a-model",
                "extra_config": settings,
                **config,
            }
        )
        self.zero_copy = zero_copy
        self.pool = host_pool(layout, getattr(torch, dtype))
        self.states = host_pool("page_first")
        if failures:
            os.environ[FAILURES] = str(failures)
        try:
            self.backend = StorageBackendFactory.create_backend("dynamic", self.config, self.pool)
        finally:
            os.environ.pop(FAILURES, None)
        self.backend.register_mem_pool_host(self.pool)
        self.backend.register_mem_host_pool_v2(self.states, PoolName.MAMBA)
        self.backend.on_host_pools_registered()
        self.controller = SimpleNamespace(storage_backend=self.backend, storage_host_pool=self.pool, page_size=PAGE)

    def own(self) -> Any:
        """The backend itself, without a failure injector around it."""
        return getattr(self.backend, "_backend", self.backend)


def pages(letters: str) -> list[str]:
    """SGLang's names of the pages of a prompt."""
    found: list[str] = []
    for letter in letters:
        found.append(get_hash_str([ord(letter)] * PAGE, found[-1] if found else None))
    return found


def indices(slots: list[int]) -> torch.Tensor:
    return torch.cat([torch.arange(slot * PAGE, (slot + 1) * PAGE) for slot in slots])


def digest(pool: Any, slot: int) -> str:
    return sha256(pool.get_data_page(slot * PAGE).contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


class Commands:
    def __init__(self) -> None:
        self.ranks: dict[str, Rank] = {}

    def start(self, rank: str, socket: str, layout: str = "page_first", zero_copy: bool = True, dtype: str = "float32",
              failures: float = 0.0, extra: dict[str, Any] | None = None, config: dict[str, Any] | None = None) -> None:  # fmt: skip
        self.ranks[rank] = Rank(socket, layout, zero_copy, dtype, failures, extra or {}, config or {})

    def fill(self, rank: str, slots: list[int], seed: int, pool: str = "pool") -> list[str]:
        """Other bytes in each page; their digests."""
        target, generator = getattr(self.ranks[rank], pool), torch.Generator().manual_seed(seed)
        for slot in slots:
            page = target.get_dummy_flat_data_page()
            target.set_from_flat_data_page(slot * PAGE, torch.rand(page.shape, generator=generator).to(page.dtype))
        return [digest(target, slot) for slot in slots]

    def digests(self, rank: str, slots: list[int], pool: str = "pool") -> list[str]:
        return [digest(getattr(self.ranks[rank], pool), slot) for slot in slots]

    def backup(self, rank: str, letters: str, slots: list[int], skip: int = 0, known: bool = True) -> bool:
        """As SGLang's backup thread does, from page `skip` of the prompt on."""
        one, names = self.ranks[rank], pages(letters)
        info = HiCacheStorageExtraInfo(prefix_keys=names[:skip] if known else None)
        kind = HiCacheController._page_set_zero_copy if one.zero_copy else HiCacheController._generic_page_set
        return bool(kind(one.controller, names[skip:], indices(slots), info))

    def prefetch(self, rank: str, letters: str, slots: list[int]) -> int:
        """As SGLang's prefetch thread does: how many pages it got."""
        one = self.ranks[rank]
        operation = SimpleNamespace(request_id="a request", is_terminated=lambda: False)
        kind = HiCacheController._page_get_zero_copy if one.zero_copy else HiCacheController._generic_page_get
        return int(kind(one.controller, operation, pages(letters), indices(slots), HiCacheStorageExtraInfo()))

    def hits(self, rank: str, letters: str) -> int:
        return int(self.ranks[rank].backend.batch_exists(pages(letters), HiCacheStorageExtraInfo()))

    def one(self, rank: str, letter: str) -> dict[str, Any]:
        """The forms for single pages: get before, set, exists, get."""
        backend, pool, name = self.ranks[rank].backend, self.ranks[rank].pool, pages(letter)[0]
        value, target = pool.get_data_page(0), pool.get_dummy_flat_data_page()
        before = backend.get(name, target)
        stored, there = backend.set(name, value), backend.exists(name)
        got = backend.get(name, target)
        return {
            "before": before is None,
            "stored": stored,
            "there": there,
            "same": got is target and bool(torch.equal(target, value)),
        }

    def v2(self, rank: str, action: str, letters: str, kv: list[int], states: list[int], kept: str = "") -> Any:
        """`states` is a second pool that has the pages `kept` (all of them if empty)."""
        one, names = self.ranks[rank], pages(letters)
        wanted = [name for name, letter in zip(names, letters, strict=True) if letter in (kept or letters)]
        transfers = [
            PoolTransfer(name=PoolName.KV, host_indices=indices(kv), keys=names),
            PoolTransfer(name=PoolName.MAMBA, host_indices=indices(states), keys=wanted),
        ]
        call = one.backend.batch_set_v2 if action == "set" else one.backend.batch_get_v2
        return {str(name): results for name, results in call(transfers, HiCacheStorageExtraInfo([])).items()}

    def hits_v2(self, rank: str, letters: str, trailing: int = 0) -> Any:
        policy = PoolHitPolicy.TRAILING_PAGES if trailing else PoolHitPolicy.ALL_PAGES
        names = pages(letters)
        transfer = PoolTransfer(name=PoolName.MAMBA, keys=names[-trailing:], hit_policy=policy)
        found = self.ranks[rank].backend.batch_exists_v2(names, [transfer], HiCacheStorageExtraInfo([]))
        by_pool = {str(name): count for name, count in found.extra_pool_hit_pages.items()}
        return [found.kv_hit_pages, by_pool, found.restorable_prefix_pages]

    def identity(self, rank: str) -> Any:
        """Family and shard of the KV pool's namespace."""
        store = self.ranks[rank].own()._store("kv")
        return [store.family, store.shard]

    def counts(self, rank: str) -> dict[str, int]:
        return dict(self.ranks[rank].own().counts)

    def metrics(self, rank: str) -> list[list[int]]:
        found = self.ranks[rank].backend.get_stats()
        return [found.prefetch_pgs, found.backup_pgs]

    def clear(self, rank: str) -> bool:
        return bool(self.ranks[rank].backend.clear())

    def stop(self, rank: str) -> None:
        self.ranks.pop(rank).own().close()

    def kind(self, rank: str) -> str:
        return type(self.ranks[rank].backend).__name__


if __name__ == "__main__":
    answer_lines(Commands())
    os._exit(0)  # what SGLang registered for the end of a process waits here for GPU modules that are not real
