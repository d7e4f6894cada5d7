"""Writing one part of an upload: chunks, then the record that makes them the part."""

from typing import TYPE_CHECKING

import msgspec

from mooncask.daemon.objects.chunk_writer import ChunkWriter
from mooncask.daemon.objects.manifest import PartRow, attempt
from mooncask.daemon.objects.upload_state import PartRecord, Upload

if TYPE_CHECKING:
    from mooncask.daemon.objects.store import Objects


class PartWriter:
    """Of one task: `write` ... `write`, then `finish` or `abort`. After `finish` has raised, `abort` is still to be called."""

    def __init__(self, objects: "Objects", upload: Upload, row: PartRow) -> None:
        self._objects = objects
        self._upload = upload
        self._row = row
        self._name = attempt(upload.id, row.number)
        self._chunks: ChunkWriter | None = ChunkWriter(objects.service, upload.hidden, upload.id, row)
        objects.holds.hold(self._name)

    async def begin(self) -> None:
        if self._row.size and self._chunks is not None:
            await self._chunks.begin()

    async def write(self, piece: memoryview) -> None:
        """As `ObjectWriter.write`."""
        assert self._chunks is not None
        await self._chunks.write(piece)

    async def finish(self, etag: str = "", checksum: str = "") -> PartRecord:
        """The part counts from now on, durable in write_through buckets. Raises NoSuchUpload when that was closed meanwhile.

        `etag` without quotes; empty: of the chunks' own checksums. `checksum`: base64, of the upload's algorithm.
        """
        assert self._chunks is not None
        await self._chunks.finish()
        row = msgspec.structs.replace(self._row, etag=etag or self._chunks.checksum_etag(), checksum=checksum)
        record = await self._objects.uploads.save_part(self._upload, row)
        self._chunks = None
        self._objects.holds.drop(self._name)
        return record

    def abort(self) -> None:
        """Nothing of it is left, now or soon. May be called at any time; after a `finish` it does nothing."""
        chunks, self._chunks = self._chunks, None
        if chunks is not None:
            chunks.abort(self._objects.background)
            self._objects.holds.drop(self._name)
