"""A process with LMCache's own remote backend and local memory, on a CPU. Commands as in `sglang_child.py`.

Chunks are named by words; what is in one is random by its seed, and told by its digest.
"""

import asyncio
import os
import threading
from hashlib import sha256
from typing import Any

import torch
from answer_lines import answer_lines
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend import RemoteBackend
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

TOKENS = 256
PUT_SECONDS = 20.0


class Instance:
    """One LMCache worker's remote backend."""

    def __init__(self, model: str, settings: dict[str, Any], shape: list[int], worker: int, workers: int) -> None:
        plugin = settings.pop("plugin", None)
        config = LMCacheEngineConfig.from_dict(
            {"chunk_size": TOKENS, "local_cpu": False, "max_local_cpu_size": 0.05, "remote_serde": "naive", **settings}
        )
        self.metadata = LMCacheMetadata(
            model_name=model,
            world_size=workers,
            local_world_size=workers,
            worker_id=worker,
            local_worker_id=worker,
            kv_dtype=torch.bfloat16,
            kv_shape=tuple(shape),
            chunk_size=TOKENS,
        )
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.memory = LocalCPUBackend(config=config, metadata=self.metadata, dst_device="cpu")
        self.remote = RemoteBackend(config, self.metadata, self.loop, self.memory, "cpu", plugin_name=plugin)

    def key(self, word: str) -> CacheEngineKey:
        return CacheEngineKey(
            model_name=self.metadata.model_name,
            world_size=self.metadata.world_size,
            worker_id=self.metadata.worker_id,
            chunk_hash=int(sha256(word.encode()).hexdigest()[:16], 16),
            dtype=torch.bfloat16,
        )


def digest(chunk: Any) -> str:
    return sha256(bytes(chunk.byte_array)).hexdigest()[:16]


async def begun_and_cancelled(call: Any) -> bool:
    """Whether it was: one that had ended gives what it got back itself."""
    task = asyncio.create_task(call)
    await asyncio.sleep(0)
    task.cancel()
    try:
        found = await task
    except asyncio.CancelledError:
        return True
    for chunk in found or []:
        if chunk is not None:
            chunk.ref_count_down()
    return False


class Commands:
    def __init__(self) -> None:
        self.instances: dict[str, Instance] = {}

    def start(self, name: str, model: str, settings: dict[str, Any], shape: list[int], worker: int = 0,
              workers: int = 1) -> bool:  # fmt: skip
        self.instances[name] = Instance(model, settings, shape, worker, workers)
        return self.instances[name].remote.connection is not None

    def put(self, name: str, words: list[str], seed: int) -> list[str]:
        one, generator, found = self.instances[name], torch.Generator().manual_seed(seed), []
        futures = []
        for word in words:
            chunk = one.memory.allocate(one.metadata.get_shapes(), one.metadata.get_dtypes())
            chunk.tensor.copy_(torch.rand(chunk.tensor.shape, generator=generator).to(chunk.tensor.dtype))
            found.append(digest(chunk))
            futures.append(one.remote.submit_put_task(one.key(word), chunk))
            chunk.ref_count_down()
        for future in futures:
            future.result(PUT_SECONDS)
        return found

    def contains(self, name: str, words: list[str]) -> list[bool]:
        one = self.instances[name]
        return [one.remote.contains(one.key(word)) for word in words]

    def prefix(self, name: str, words: list[str]) -> int:
        """As LMCache's lookups do: in one call, and in its asynchronous form."""
        one = self.instances[name]
        keys = [one.key(word) for word in words]
        found = one.remote.batched_contains(keys)
        later = asyncio.run_coroutine_threadsafe(one.remote.batched_async_contains("a look-up", keys), one.loop)
        assert later.result(PUT_SECONDS) == found
        return found

    def get(self, name: str, words: list[str]) -> list[str | None]:
        one = self.instances[name]
        chunks = one.remote.batched_get_blocking([one.key(word) for word in words])
        found = [None if chunk is None else digest(chunk) for chunk in chunks]
        for chunk in chunks:
            if chunk is not None:
                chunk.ref_count_down()
        return found

    def get_prefix(self, name: str, words: list[str]) -> list[str]:
        one = self.instances[name]
        keys = [one.key(word) for word in words]
        call = one.remote.batched_get_non_blocking("a look-up", keys)
        chunks = asyncio.run_coroutine_threadsafe(call, one.loop).result(PUT_SECONDS)
        found = [digest(chunk) for chunk in chunks]
        for chunk in chunks:
            chunk.ref_count_down()
        return found

    def remove(self, name: str, word: str) -> bool:
        one = self.instances[name]
        return bool(one.remote.remove(one.key(word)))

    def ping(self, name: str) -> int:
        one = self.instances[name]
        return int(asyncio.run_coroutine_threadsafe(one.remote.connection.ping(), one.loop).result(PUT_SECONDS))

    def close(self, name: str) -> None:
        """The connector alone, twice, as when LMCache shuts down while calls still come."""
        one = self.instances[name]
        for _ in range(2):
            asyncio.run_coroutine_threadsafe(one.remote.connection.close(), one.loop).result(PUT_SECONDS)

    def cancelled(self, name: str, what: str, words: list[str]) -> int:
        """Starts a get, or a put of a new chunk, for each word and cancels it at once; how many were."""
        one, cancelled = self.instances[name], 0
        for number, word in enumerate(words):
            if what == "get":
                call = one.remote.connection.batched_get([one.key(word)])
            else:
                chunk = one.memory.allocate(one.metadata.get_shapes(), one.metadata.get_dtypes())
                chunk.tensor.fill_(float(number))
                call = one.remote.connection.put(one.key(word), chunk)  # and lets go of it
            cancelled += asyncio.run_coroutine_threadsafe(begun_and_cancelled(call), one.loop).result(PUT_SECONDS)
        return cancelled

    def is_filled(self, name: str, words: list[str]) -> list[bool | None]:
        """Whether chunks that `cancelled` put are what they were made of; None for those that are not stored."""
        one = self.instances[name]
        chunks = one.remote.batched_get_blocking([one.key(word) for word in words])
        found = [
            None if chunk is None else bool((chunk.tensor == torch.tensor(float(i)).to(chunk.tensor.dtype)).all())
            for i, chunk in enumerate(chunks)
        ]
        for chunk in chunks:
            if chunk is not None:
                chunk.ref_count_down()
        return found

    def counts(self, name: str) -> dict[str, int]:
        connection = self.instances[name].remote.connection
        return dict(connection.getWrappedConnector().store.counts)


if __name__ == "__main__":
    answer_lines(Commands())
    os._exit(0)  # the S3 client's threads do not end by themselves
