"""What an export says of itself: the namespace, each block, the end. The same in a tar and in a bucket; docs/CLI.md has it.

Keys and digests are hex, times wall-clock seconds. Nothing here does I/O.
"""

import re
from typing import Any

import msgspec

from mooncask.errors import BadRequest

FORMAT = 1
MANIFEST_NAME = "mooncask-export.json"
END_NAME = "mooncask-end.json"
_HEX = re.compile("(?:[0-9a-f]{2})*")
_END_OF_TIME = 253_402_300_800
"""The year 10000."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The namespace as it was: enough to make one in which the same prompts hit."""

    format: int = FORMAT
    namespace: str
    kind: str
    """kv or object."""
    family: dict[str, str] = {}
    shard: str = ""
    mode: str = ""
    hash: str = "sha256"
    root: str = ""
    """d[0] of the tenant's chains: keys mean the same only where this is equal. Empty for objects."""
    version: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("kv", "object"):
            raise ValueError(f"kind {self.kind[:40]} of a namespace")

    def check_continues(self, other: "Manifest", where: str) -> None:
        """`other` is being exported to where this one is. Raises BadRequest unless they are one namespace."""
        for field in ("kind", "family", "shard", "hash", "root"):
            if getattr(self, field) != getattr(other, field):
                raise BadRequest(
                    f"{where} holds namespace {self.namespace}, whose {field} is not that of {other.namespace}; "
                    "choose another target"
                )


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One block. `checksum` is xxh3_128 of its payload."""

    key: str
    size: int
    checksum: str
    parent: str = ""
    depth: int = 0
    tokens: int = 0
    created_seconds: float = 0.0
    expires_seconds: float = 0.0
    """When its time to live is over; 0 = never."""
    headers: dict[str, str] = {}
    """Of an object: content type, user's metadata and the like, by their HTTP names."""

    def __post_init__(self) -> None:
        """An archive may come from anywhere. Raises ValueError, which reading it makes a BadRequest."""
        for field in ("key", "checksum", "parent"):
            if not _HEX.fullmatch(getattr(self, field)):
                raise ValueError(f"{field} is no hex")
        if self.size < 0 or not 0 <= self.expires_seconds < _END_OF_TIME:
            raise ValueError(f"size {self.size}, expires_seconds {self.expires_seconds}")
        if any(mark in text for pair in self.headers.items() for text in pair for mark in "\r\n\0"):
            raise ValueError("a header of two lines")

    @property
    def key_bytes(self) -> bytes:
        return bytes.fromhex(self.key)


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Written last: what has none is unfinished."""

    blocks: int
    size_bytes: int


def encode(what: msgspec.Struct | list[Entry]) -> bytes:
    """As JSON."""
    return msgspec.json.encode(what)


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Raises BadRequest for what is no manifest, or one of another format."""
    found: Manifest = _decode(data, Manifest, where)
    if found.format != FORMAT:
        raise BadRequest(f"{where} has export format {found.format}; this version reads {FORMAT}")
    return found


def decode_entry(data: bytes | str, where: str) -> Entry:
    """Raises BadRequest."""
    found: Entry = _decode(data, Entry, where)
    return found


def decode_entries(data: bytes, where: str) -> list[Entry]:
    """Raises BadRequest."""
    found: list[Entry] = _decode(data, list[Entry], where)
    return found


def decode_end(data: bytes | None, where: str) -> End | None:
    """None for none. Raises BadRequest."""
    if data is None:
        return None
    found: End = _decode(data, End, where)
    return found


def mark(entry: Entry) -> str:
    """What tells one version of a block from another: an object's ETag, else the checksum."""
    return entry.headers.get("ETag", entry.checksum)


def _decode(data: bytes | str, kind: Any, where: str) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise BadRequest(f"{where} is no export of Mooncask: {error}") from error
