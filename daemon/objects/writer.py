"""Writing one object of known length: as one block where it fits into one, else as chunks and then the manifest.

Nobody sees anything of it before `finish` publishes, in one step; what was there before stays until then.
"""

import secrets
import time
from typing import TYPE_CHECKING

import msgspec

from mooncask.daemon.objects.attributes import (
    ObjectAttributes,
    ObjectInfo,
    PutCondition,
    encode_attributes,
)
from mooncask.daemon.objects.chunk_writer import ChunkWriter
from mooncask.daemon.objects.filling import Filling, make_object_durable, put_small
from mooncask.daemon.objects.manifest import DATA_BYTES, Manifest, PartRow, encode_manifest
from mooncask.errors import BadRequest, NoSuchBlock
from mooncask.tiers.block import printable_key
from mooncask.tiers.crash_points import crash_point
from mooncask.tiers.namespace import Namespace

if TYPE_CHECKING:
    from mooncask.daemon.objects.store import Objects


class ObjectWriter:
    """Of one task: `write` ... `write`, then `finish` or `abort`. After `finish` has raised, `abort` is still to be called."""

    def __init__(
        self,
        objects: "Objects",
        namespace: Namespace,
        key: bytes,
        size: int,
        condition: PutCondition,
        *,
        wait_durable: bool,
    ) -> None:
        self._objects = objects
        self._service = objects.service
        self._namespace, self._key, self._size = namespace, key, size
        self._condition = condition
        self._wait_durable = wait_durable
        self._filling: Filling | None = None
        self._chunks: ChunkWriter | None = None
        self._row = PartRow(1, 1, size, objects.chunk_bytes)
        self._data = b""
        self._published = False

    async def begin(self) -> None:
        """A place for the first bytes. Raises QuotaExceeded, NotEvictable, Busy, BlockTooLarge, PreconditionFailed."""
        namespace = self._namespace
        if self._condition:  # looked at again where it is published; here it saves the reception
            have = self._objects.info(namespace, self._key)
            self._condition.check(namespace.spec.name, self._key, None if have is None else have.etag)
        if namespace.spec.kind == "kv" or self._size <= self._objects.single_bytes_max:
            self._filling = await Filling.reserve(self._service, namespace, self._key, self._size)
            return
        self._service.check_room(namespace, self._size)
        parts = await self._objects.parts_of(namespace)
        self._data = secrets.token_bytes(DATA_BYTES)
        self._objects.holds.hold(self._data)
        self._chunks = ChunkWriter(self._service, parts, self._data, self._row)
        await self._chunks.begin()

    @property
    def is_long(self) -> bool:
        """Whether it is stored in chunks."""
        return self._chunks is not None

    @property
    def wants_bytes(self) -> bool:
        """False for a KV block that is here already: `finish` may be called at once."""
        return self._chunks is not None or self._filling is not None

    async def write(self, piece: memoryview) -> None:
        """Returns when the bytes are copied. Raises BadRequest for more than `size`, Busy, NotEvictable, TierDegraded."""
        if self._chunks is not None:
            await self._chunks.write(piece)
        elif self._filling is not None:
            if piece.nbytes > self._filling.room:
                raise BadRequest(f"more than the {self._size} bytes that were announced")
            self._filling.take(piece)

    async def finish(self, attributes: ObjectAttributes | None = None, digest: bytes = b"") -> ObjectInfo:
        """Publishes; durable in write_through namespaces unless the writer was told not to wait. `attributes` need no size,
        data and time: those are set here; an empty ETag becomes one of the payload's xxh3_128. `digest`: of a single block.

        Raises PreconditionFailed, DigestMismatch, MetadataTooLarge, NotEvictable, TierDegraded, NoSuchNamespace.
        """
        if self._chunks is not None:
            stored = await self._finish_long(self._chunks, attributes or ObjectAttributes())
        else:
            stored = await self._finish_block(attributes, digest)
        if self._wait_durable:
            await make_object_durable(self._service, self._namespace, self._key)
        return stored

    def abort(self) -> None:
        """Nothing of it is left, now or soon; what was published stays. May be called at any time, also twice."""
        if self._filling is not None:
            self._filling.abort()
        chunks, self._chunks = self._chunks, None
        if chunks is not None and not self._published:
            chunks.abort(self._objects.background)
            self._objects.holds.drop(self._data)

    async def _finish_block(self, attributes: ObjectAttributes | None, digest: bytes) -> ObjectInfo:
        if self._filling is not None:
            encoded = b"" if attributes is None else encode_attributes(self._completed(attributes))
            await self._filling.publish(
                digest, encoded, self._condition.at_publish(self._namespace.spec.name, self._key)
            )
            self._published = True
        return self._stored()

    async def _finish_long(self, chunks: ChunkWriter, attributes: ObjectAttributes) -> ObjectInfo:
        await chunks.finish()
        if not attributes.etag:
            attributes = msgspec.structs.replace(attributes, etag=chunks.checksum_etag())
        encoded = encode_attributes(self._completed(attributes))
        payload = encode_manifest(Manifest(self._data, [self._row]))
        crash_point("objects.chunks.written")
        condition = self._condition.at_publish(self._namespace.spec.name, self._key)
        await put_small(self._service, self._namespace, self._key, payload, encoded, condition)
        self._published = True
        self._objects.holds.drop(self._data)
        return self._stored()

    def _completed(self, attributes: ObjectAttributes) -> ObjectAttributes:
        return msgspec.structs.replace(attributes, size=self._size, data=self._data, modified=time.time())

    def _stored(self) -> ObjectInfo:
        """To be asked right after the publish, with no await in between: this is what was put, or what was there first."""
        found = self._objects.info(self._namespace, self._key)
        if found is None:
            raise NoSuchBlock(self._namespace.spec.name, printable_key(self._key))
        return found
