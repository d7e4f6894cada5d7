"""What is known of uploads in parts: records that lie in the hidden namespace beside the parts themselves. No I/O.

Everything is in the records' attributes, so a start knows all uploads without reading a disk.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from mooncask.daemon.objects.attributes import ObjectAttributes
from mooncask.daemon.objects.manifest import (
    ATTEMPT_BYTES,
    DATA_BYTES,
    PART_KEY_BYTES,
    UPLOAD_KEY_BYTES,
    PartRow,
    attempt,
)
from mooncask.errors import InvalidPart, InvalidPartOrder, PartTooSmall
from mooncask.tiers.namespace import Namespace

PART_BYTES_MIN = 5 << 20
"""Of every part but the last, as S3 has it."""
PART_NUMBER_MAX = 10_000


class UploadRecord(msgspec.Struct, frozen=True, array_like=True):
    key: bytes
    attributes: ObjectAttributes
    """What the object will have; without size, ETag and time."""
    started: float
    """Wall clock seconds."""
    algorithm: str = ""
    """Of the checksums that parts have: crc32 and so on."""
    checksum_type: str = ""


class PartRecord(msgspec.Struct, frozen=True, array_like=True):
    row: PartRow
    modified: float


@dataclass(slots=True, eq=False)
class Upload:
    """One open upload. `id` is also the data id of the object that it may become."""

    id: bytes
    owner: Namespace
    """Where the object will be."""
    hidden: Namespace
    record: UploadRecord
    parts: dict[int, PartRecord] = field(default_factory=dict)
    closed: bool = False
    """Completed or aborted: nothing is added any more."""

    @property
    def name(self) -> str:
        """As clients know it."""
        return self.id.hex()

    @property
    def attempts(self) -> set[bytes]:
        return {attempt(self.id, part.row.number) for part in self.parts.values()}


@dataclass(frozen=True, slots=True)
class WantedPart:
    """As a client lists it to complete an upload. `etag` without quotes; `checksum` empty when it gave none."""

    part: int
    etag: str
    checksum: str = ""


def chosen_rows(upload: Upload, wanted: Sequence[WantedPart]) -> list[PartRow]:
    """The parts that the object shall consist of. Raises InvalidPart, InvalidPartOrder, PartTooSmall."""
    numbers = [item.part for item in wanted]
    if not wanted:
        raise InvalidPart(upload.name, 0, "at least one part is needed")
    if sorted(set(numbers)) != numbers:
        raise InvalidPartOrder(upload.name)
    rows = [_row_of(upload, item) for item in wanted]
    for row in rows[:-1]:
        if row.size < PART_BYTES_MIN:
            raise PartTooSmall(row.part, row.size, PART_BYTES_MIN)
    return rows


def _row_of(upload: Upload, wanted: WantedPart) -> PartRow:
    found = upload.parts.get(wanted.part)
    if found is None:
        raise InvalidPart(upload.name, wanted.part, "it was not uploaded")
    if found.row.etag != wanted.etag:
        raise InvalidPart(upload.name, wanted.part, f'its ETag is "{found.row.etag}", not "{wanted.etag}"')
    if wanted.checksum and found.row.checksum and found.row.checksum != wanted.checksum:
        raise InvalidPart(upload.name, wanted.part, f"its checksum is {found.row.checksum}, not {wanted.checksum}")
    return found.row


def multipart_etag(rows: Sequence[PartRow]) -> str:
    """MD5 of the parts' MD5s and their number, as S3 makes it."""
    digests = b"".join(bytes.fromhex(row.etag.partition("-")[0]) for row in rows)
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(rows)}"


def is_record(key: bytes) -> bool:
    """Whether a block of the hidden namespace is a record and not a chunk."""
    return len(key) in (UPLOAD_KEY_BYTES, PART_KEY_BYTES)


def belongs(upload: Upload, key: bytes) -> bool:
    """Whether a block of the hidden namespace is this upload's own record, a part's, or a chunk of such a part."""
    assert key[:DATA_BYTES] == upload.id
    if is_record(key):
        return True
    name = key[:ATTEMPT_BYTES]
    return any(name == attempt(upload.id, part.row.number) for part in upload.parts.values())
