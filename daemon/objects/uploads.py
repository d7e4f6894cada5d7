"""Uploads in parts: created, filled part by part, then completed or aborted. They outlive the daemon in write_through buckets.

An upload that is older than a day goes, parts and all. What each part and each upload is: `upload_state.py`.
"""

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from mooncask.daemon.objects.attributes import (
    ALWAYS,
    ObjectAttributes,
    ObjectInfo,
    PutCondition,
    decode_attributes,
    encode_attributes,
)
from mooncask.daemon.objects.filling import make_durable, make_object_durable, put_small
from mooncask.daemon.objects.manifest import (
    DATA_BYTES,
    PART_KEY_BYTES,
    UPLOAD_KEY_BYTES,
    Manifest,
    PartRow,
    encode_manifest,
    part_key,
    part_of_key,
)
from mooncask.daemon.objects.part_writer import PartWriter
from mooncask.daemon.objects.upload_state import (
    PART_NUMBER_MAX,
    PartRecord,
    Upload,
    UploadRecord,
    WantedPart,
    belongs,
    chosen_rows,
    multipart_etag,
)
from mooncask.errors import Busy, InvalidPart, MooncaskError, NoSuchUpload
from mooncask.tiers.crash_points import crash_point
from mooncask.tiers.namespace import Namespace, parts_name

if TYPE_CHECKING:
    from mooncask.daemon.objects.store import Objects

log = logging.getLogger(__name__)

Checksums = Callable[[Upload, Sequence[PartRow]], dict[str, str]]
UPLOAD_SECONDS_MAX = 24 * 3600.0
UPLOADS_MAX = 10_000
"""Open at a time, of all tenants: each is known in memory."""


class Uploads:
    """All open uploads. Owned by the event loop's thread."""

    def __init__(self, objects: "Objects") -> None:
        self._objects = objects
        self._service = objects.service
        self._store = objects.store
        self._open: dict[bytes, Upload] = {}

    # --- looking ---

    def find(self, namespace: Namespace, key: bytes, name: str) -> Upload:
        """Raises NoSuchUpload."""
        try:
            upload = self._open.get(bytes.fromhex(name))
        except ValueError:
            upload = None
        if upload is None or upload.closed or upload.owner is not namespace or upload.record.key != key:
            raise NoSuchUpload(name[:64])
        return upload

    def list_parts(self, namespace: Namespace, key: bytes, name: str, after: int, limit: int) -> list[PartRecord]:
        """By number, those above `after`. Raises NoSuchUpload."""
        parts = self.find(namespace, key, name).parts
        return [parts[number] for number in sorted(parts) if number > after][:limit]

    def list_uploads(self, namespace: Namespace) -> list[Upload]:
        """By key, then by age."""
        mine = [upload for upload in self._open.values() if upload.owner is namespace and not upload.closed]
        return sorted(mine, key=lambda upload: (upload.record.key, upload.record.started, upload.id))

    def algorithm_of(self, name: str) -> str:
        """Of an open upload's checksums; empty where there is none of that name."""
        try:
            upload = self._open.get(bytes.fromhex(name))
        except ValueError:
            return ""
        return "" if upload is None else upload.record.algorithm

    def has_block(self, key: bytes) -> bool:
        """Whether a block of a hidden namespace belongs to an open upload."""
        upload = self._open.get(key[:DATA_BYTES])
        return upload is not None and belongs(upload, key)

    # --- changing ---

    async def create(
        self,
        namespace: Namespace,
        key: bytes,
        attributes: ObjectAttributes,
        algorithm: str = "",
        checksum_type: str = "",
    ) -> Upload:
        """Raises MetadataTooLarge, Busy."""
        encode_attributes(attributes)
        if len(self._open) >= UPLOADS_MAX:
            raise Busy(f"{UPLOADS_MAX} uploads are open already; complete or abort some")
        hidden = await self._objects.parts_of(namespace)
        record = UploadRecord(key, attributes, time.time(), algorithm, checksum_type)
        upload = Upload(secrets.token_bytes(DATA_BYTES), namespace, hidden, record)
        self._open[upload.id] = upload
        try:
            await self._save(hidden, upload.id, msgspec.msgpack.encode(record))
        except BaseException:
            del self._open[upload.id]
            raise
        return upload

    async def part_writer(self, namespace: Namespace, key: bytes, name: str, part: int, size: int) -> PartWriter:
        """Raises NoSuchUpload, InvalidPart, QuotaExceeded, NotEvictable, Busy."""
        upload = self.find(namespace, key, name)
        if not 1 <= part <= PART_NUMBER_MAX:
            raise InvalidPart(name, part, f"parts are numbered from 1 to {PART_NUMBER_MAX}")
        self._service.check_room(upload.hidden, size)
        writer = PartWriter(self._objects, upload, PartRow(part, self._attempt(), size, self._objects.chunk_bytes))
        try:
            await writer.begin()
        except BaseException:
            writer.abort()
            raise
        return writer

    async def complete(
        self,
        namespace: Namespace,
        key: bytes,
        name: str,
        wanted: Sequence[WantedPart],
        condition: PutCondition = ALWAYS,
        checksums: Checksums = lambda upload, rows: {},
        *,
        wait_durable: bool = True,
    ) -> ObjectInfo:
        """Publishes the object, in one step. Asking again after it has succeeded has the same answer. `checksums` says what
        those of the object are, by its parts; what it raises refuses the completion.

        Raises NoSuchUpload, InvalidPart, InvalidPartOrder, PartTooSmall, PreconditionFailed; the upload is still open then.
        """
        done = self._completed_before(namespace, key, name)
        if done is not None:
            return done
        upload = self.find(namespace, key, name)
        rows = chosen_rows(upload, wanted)
        upload.closed = True
        try:
            info = await self._publish(upload, rows, condition, checksums(upload, rows))
        except BaseException:
            upload.closed = False
            raise
        try:
            if wait_durable:
                await make_object_durable(self._service, namespace, key)
            crash_point("objects.upload.published")
        finally:  # published is published: where the disk had no room for it, the parts go with the object
            self._objects.background(self._tidy(upload, rows))
        return info

    async def abort(self, namespace: Namespace, key: bytes, name: str) -> None:
        """Raises NoSuchUpload."""
        await self._drop(self.find(namespace, key, name))

    async def save_part(self, upload: Upload, row: PartRow) -> PartRecord:
        """The part is there from now on, in the place of an earlier one of its number. Raises NoSuchUpload."""
        record, key = PartRecord(row, time.time()), part_key(upload.id, row.part)
        if not upload.closed:
            await self._save(upload.hidden, key, msgspec.msgpack.encode(record))
        if upload.closed:  # meanwhile: nobody else takes the record out
            await self._objects.sweeper.remove_all(upload.hidden, [key])
            raise NoSuchUpload(upload.name)
        earlier = upload.parts.get(row.part)
        upload.parts[row.part] = record
        if earlier is not None:
            self._objects.background(self._remove_attempt(upload, earlier.row))
        return record

    async def expire(self, now_seconds: float) -> None:
        """Those that are too old go."""
        for upload in list(self._open.values()):
            if now_seconds - upload.record.started > UPLOAD_SECONDS_MAX and not upload.closed:
                log.info("upload %s of %s is older than a day: aborted", upload.name, upload.owner.spec.name)
                await self._drop(upload)

    def forget(self, hidden: Namespace) -> None:
        """The namespace is about to go, with all that is in it."""
        for upload in [upload for upload in self._open.values() if upload.hidden is hidden]:
            upload.closed = True
            del self._open[upload.id]

    # --- after a start ---

    def restore(self) -> None:
        """Takes up what an earlier run left: open uploads, and completed ones that were not tidied up."""
        for hidden in [namespace for namespace in self._store.namespaces() if namespace.spec.hidden]:
            owner = self._store.namespace(hidden.spec.name.partition("/")[0])
            if owner is not None and parts_name(owner.spec.name) == hidden.spec.name:
                self._restore(owner, hidden)

    def _restore(self, owner: Namespace, hidden: Namespace) -> None:
        for key in [key for key in hidden.index if len(key) == UPLOAD_KEY_BYTES]:
            record = msgspec.msgpack.decode(self._store.attributes(hidden, key), type=UploadRecord)
            self._open[key] = Upload(key, owner, hidden, record)
        for key in [key for key in hidden.index if len(key) == PART_KEY_BYTES]:
            upload = self._open.get(key[:DATA_BYTES])
            if upload is not None:
                part = msgspec.msgpack.decode(self._store.attributes(hidden, key), type=PartRecord)
                upload.parts[part_of_key(key)] = part
        for upload in [upload for upload in self._open.values() if upload.hidden is hidden]:
            have = decode_attributes(self._store.attributes(owner, upload.record.key))
            if have is not None and have.data == upload.id:
                upload.closed = True
                self._objects.background(self._tidy_restored(upload))

    async def _tidy_restored(self, upload: Upload) -> None:
        try:
            with await self._objects.open(upload.owner, upload.record.key) as reader:
                if reader.manifest is not None and reader.manifest.data == upload.id:
                    return await self._tidy(upload, reader.manifest.parts)
        except MooncaskError as error:
            log.warning("upload %s was completed, and its object can't be read: %s", upload.name, error.message)
        self._open.pop(upload.id, None)

    # --- parts of it ---

    def _completed_before(self, namespace: Namespace, key: bytes, name: str) -> ObjectInfo | None:
        info = self._objects.info(namespace, key)
        return info if info is not None and info.data and info.data.hex() == name.lower() else None

    async def _publish(
        self, upload: Upload, rows: list[PartRow], condition: PutCondition, checksums: dict[str, str]
    ) -> ObjectInfo:
        manifest = Manifest(upload.id, rows)
        attributes = msgspec.structs.replace(
            upload.record.attributes,
            size=manifest.size,
            etag=multipart_etag(rows),
            modified=time.time(),
            data=upload.id,
            checksums=checksums,
            checksum_type=upload.record.checksum_type if checksums else "",
            parts=len(rows),
        )
        key, owner = upload.record.key, upload.owner
        if not self._objects.complete(upload.hidden, manifest):
            raise InvalidPart(upload.name, rows[0].part, "some of its parts were damaged; upload them again")
        self._objects.holds.hold(upload.id)
        try:
            payload, encoded = encode_manifest(manifest), encode_attributes(attributes)
            await put_small(self._service, owner, key, payload, encoded, condition.at_publish(owner.spec.name, key))
            info = self._objects.info(owner, key)
        finally:
            self._objects.holds.drop(upload.id)
        if info is None:
            raise NoSuchUpload(upload.name)
        return info

    async def _save(self, hidden: Namespace, key: bytes, attributes: bytes) -> None:
        await put_small(self._service, hidden, key, b"", attributes)
        await make_durable(self._service, hidden, key)

    async def _drop(self, upload: Upload) -> None:
        upload.closed = True
        self._open.pop(upload.id, None)
        keys = list(upload.hidden.keys_after(upload.id, b""))
        await self._objects.sweeper.remove(upload.hidden, keys)

    async def _tidy(self, upload: Upload, rows: Sequence[PartRow]) -> None:
        """After completion: records and parts that the object has not. Until it is done a start would do it again."""
        keep = {row.number for row in rows}
        for part in list(upload.parts.values()):
            if part.row.number not in keep:
                await self._remove_attempt(upload, part.row)
        records = [part_key(upload.id, number) for number in upload.parts]
        await self._objects.sweeper.remove_all(upload.hidden, records)
        await self._objects.sweeper.remove_all(upload.hidden, [upload.id])  # last: with it a start knows what is to do
        self._open.pop(upload.id, None)

    async def _remove_attempt(self, upload: Upload, row: PartRow) -> None:
        await self._objects.sweeper.remove_all(upload.hidden, list(Manifest(upload.id, [row]).chunk_keys()))

    def _attempt(self) -> int:
        """A number for one attempt: 32 random bits, which no other attempt of the same upload will have drawn."""
        return secrets.randbits(32)
