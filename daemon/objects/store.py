"""Objects of any length: the one door for HTTP, the socket and whoever copies. See docs/FORMAT.md, "Objects".

An object that fits into one block is one. A longer one is a manifest under its key, and its bytes lie in chunks in a hidden
namespace beside: blocks like others, but in no listing and never evicted.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from mooncask.daemon.objects.attributes import ALWAYS, ObjectInfo, PutCondition, decode_attributes, object_info
from mooncask.daemon.objects.filling import REQUEST_SECONDS
from mooncask.daemon.objects.holds import Holds
from mooncask.daemon.objects.manifest import Manifest, decode_manifest
from mooncask.daemon.objects.reader import LOADS_MAX, ObjectReader
from mooncask.daemon.objects.sweeper import Sweeper
from mooncask.daemon.objects.uploads import Uploads
from mooncask.daemon.objects.writer import ObjectWriter
from mooncask.errors import Busy, CorruptBlock, MooncaskError, NoSuchBlock, ObjectInParts, ObjectTooLarge
from mooncask.tiers.block import ALIGNMENT, Extent, printable_key
from mooncask.tiers.namespace import Namespace, NamespaceSpec, parts_name
from mooncask.tiers.store import Store

if TYPE_CHECKING:
    from mooncask.daemon.service import Service

log = logging.getLogger(__name__)

BLOCK_BYTES_MAX = 16 << 20
"""An object up to this long is one block, where the daemon takes blocks as long."""
CHUNK_BYTES_MIN = 1 << 20
CHUNKS_FIT = 16
"""So many chunks fit into DRAM and into one segment: several transfers at a time do not block each other, and what is lost at
the end of a segment is little."""
CLOSE_SECONDS = 5.0
PUT_BYTES_MAX = 5 << 40
"""Of one object, as S3 has it."""


class Objects:
    """Of one daemon. Everything belongs to the event loop's thread."""

    def __init__(self, service: "Service") -> None:
        self.service = service
        self.store: Store = service.store
        self.single_bytes_max = min(BLOCK_BYTES_MAX, service.block_bytes_max)
        self.chunk_bytes = _chunk_bytes(service.store, self.single_bytes_max)
        self.holds = Holds()
        # To pyright a module that imports this one, if only for its types, has another class of the same name in mind.
        self.sweeper = Sweeper(self)  # pyright: ignore[reportArgumentType]
        self.uploads = Uploads(self)  # pyright: ignore[reportArgumentType]
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Takes up the uploads of an earlier run, and takes out what a crash left."""
        self.uploads.restore()
        self.sweeper.start()

    async def close(self) -> None:
        """What is being taken out may end within CLOSE_SECONDS; a start goes on with it. Before the store is closed."""
        self.sweeper.stop()
        tasks = {*self._tasks, *self.sweeper.tasks()}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # --- looking ---

    def info(self, namespace: Namespace, key: bytes) -> ObjectInfo | None:
        """None: there is none."""
        block = self.store.info(namespace, key)
        return None if block is None else object_info(block)

    def list_objects(
        self, namespace: Namespace, prefix: bytes = b"", after: bytes = b"", limit: int = 1000
    ) -> list[ObjectInfo]:
        """In key order, those whose key starts with `prefix` and comes after `after`, at most `limit`."""
        return [object_info(block) for block in self.store.list_blocks(namespace, prefix, after, limit)]

    def check_one_block(self, namespace: Namespace, keys: Sequence[bytes]) -> None:
        """Raises ObjectInParts for an object whose block is not its bytes: that must not be handed out."""
        for key in keys if namespace.spec.kind != "kv" else ():
            attributes = decode_attributes(self.store.attributes(namespace, key))
            if attributes is not None and attributes.data:
                raise ObjectInParts(namespace.spec.name, printable_key(key), attributes.size)

    def in_parts(self, namespace: Namespace, key: bytes) -> bool:
        """Whether the block under the key is a manifest and not the object's bytes."""
        if namespace.spec.kind == "kv":
            return False
        attributes = decode_attributes(self.store.attributes(namespace, key))
        return attributes is not None and bool(attributes.data)

    # --- reading ---

    async def open(self, namespace: Namespace, key: bytes) -> ObjectReader:
        """One version of the object, to be closed. All of its parts are here. Raises NoSuchBlock and Busy."""
        deadline = time.monotonic() + REQUEST_SECONDS
        for _ in range(LOADS_MAX):
            loaded = None
            (extent,) = self.store.hold(namespace, [key])
            if extent is None:
                loaded = await self.store.fetch(namespace, key, deadline)
                (extent,) = self.store.hold(namespace, [key])
            # Looked up together with the extent, so that bytes and attributes are of one version.
            info = self.info(namespace, key)
            if loaded is not None:
                self.store.drop(loaded)
            if info is None:
                if extent is not None:
                    self.store.drop(extent)
                raise NoSuchBlock(namespace.spec.name, printable_key(key))
            if extent is not None:
                return self._reader(namespace, info, extent)
        raise Busy(f"object {printable_key(key)} did not come into DRAM", REQUEST_SECONDS)

    def _reader(self, namespace: Namespace, info: ObjectInfo, extent: Extent) -> ObjectReader:
        """Takes the reference over. No await in here: from the look-up on the data is held."""
        if not info.data:
            return ObjectReader(self, namespace, info, extent, None, None)  # pyright: ignore[reportArgumentType]
        try:
            manifest = decode_manifest(self.store.view(extent)[: extent.size])
        finally:
            self.store.drop(extent)
        parts = self.store.namespace(parts_name(namespace.spec.name))
        if parts is None or not self.complete(parts, manifest):
            self._lost(namespace, info)
            raise NoSuchBlock(namespace.spec.name, printable_key(info.key))
        self.holds.hold(manifest.data)
        return ObjectReader(self, namespace, info, None, manifest, parts)  # pyright: ignore[reportArgumentType]

    def complete(self, parts: Namespace, manifest: Manifest) -> bool:
        """Whether every part is here."""
        return all(key in parts.index for key in manifest.chunk_keys())

    def _lost(self, namespace: Namespace, info: ObjectInfo) -> None:
        """A part is gone: it was damaged, or never reached the disk before a crash in a bucket that does not wait for it."""
        self.service.counters["objects_incomplete"] += 1
        error = CorruptBlock(printable_key(info.key), "nvme", "a part of it is lost")
        self.store.quarantine_block(namespace, info.key, error)

    async def verify(self, namespace: Namespace, key: bytes) -> bool:
        """Reads and checks every copy of all that the object consists of; whether it is right. A wrong one is quarantined, and so
        is an object with a wrong part. Raises NoSuchBlock when it is not here."""
        if not await self.store.verify(namespace, key):
            return False
        if not self.in_parts(namespace, key):
            return True
        with await self.open(namespace, key) as reader:
            if reader.manifest is None or reader.parts is None:
                return True  # replaced meanwhile
            for part in reader.manifest.chunk_keys():
                if not await self.store.verify(reader.parts, part):
                    self._lost(namespace, reader.info)
                    return False
        return True

    # --- writing ---

    async def writer(
        self,
        namespace: Namespace,
        key: bytes,
        size: int,
        condition: PutCondition = ALWAYS,
        *,
        wait_durable: bool = True,
    ) -> ObjectWriter:
        """A place to write an object of exactly `size` bytes. `condition` is decided in the step that publishes.

        Raises ObjectTooLarge, QuotaExceeded, NotEvictable, Busy, PreconditionFailed; in KV namespaces LengthMismatch and so on.
        """
        if size > PUT_BYTES_MAX:
            raise ObjectTooLarge(size, PUT_BYTES_MAX, "in one object")
        writer = ObjectWriter(self, namespace, key, size, condition, wait_durable=wait_durable)  # pyright: ignore[reportArgumentType]
        try:
            await writer.begin()
        except BaseException:
            writer.abort()
            raise
        return writer

    async def delete(self, namespace: Namespace, keys: Sequence[bytes]) -> int:
        """Durable when it returns. Who reads them keeps what they read. Unknown keys don't count."""
        return await self.store.evict(namespace, keys)

    # --- the hidden namespace ---

    async def parts_of(self, namespace: Namespace) -> Namespace:
        """The hidden namespace beside this one, made if need be; its mode follows its owner's."""
        spec = namespace.spec
        name = parts_name(spec.name)
        return await self.store.open_namespace(
            NamespaceSpec(name=name, kind="parts", tenant=spec.tenant, mode=spec.mode)
        )

    async def drop_parts(self, namespace: Namespace) -> None:
        """The bucket was dropped: its open uploads and what is left of deleted objects go with it."""
        parts = self.store.namespace(parts_name(namespace.spec.name))
        if parts is None:
            return
        self.uploads.forget(parts)
        await self.sweeper.drop(parts)

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """What nobody waits for, but a stop does."""
        task = asyncio.get_running_loop().create_task(self._quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except MooncaskError as error:
            self.service.counters["sweeps_failed"] += 1
            log.warning("what is not needed could not be taken out: %s", error.message)


def _chunk_bytes(store: Store, single_bytes_max: int) -> int:
    room = store.config.dram_bytes
    if store.nvme is not None:
        room = min(room, store.nvme.block_bytes_max)
    with_header = room // CHUNKS_FIT // ALIGNMENT * ALIGNMENT
    return min(single_bytes_max, max(CHUNK_BYTES_MIN, with_header - ALIGNMENT))
