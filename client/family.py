"""What must be equal for KV to be exchanged: named fields with one canonical encoding. docs/HASHING.md is the specification.

Not here: which fields an engine must fill in (that is the adapter's knowledge), prefix hashing (`hashing.py`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from xxhash import xxh3_128_digest

from mooncask.errors import BadRequest

HashName = Literal["sha256", "xxh3_128"]
"""sha256 is safe against crafted collisions; xxh3_128 is faster and for places where everyone is trusted."""

DIGEST_BYTES = 16
FIELDS_MAX = 64
FIELD_BYTES_MAX = 4096
_DOMAIN = b"mooncask family 1\0"


def digest(data: bytes, hash: str = "sha256") -> bytes:
    """H of docs/HASHING.md: 16 bytes. Raises BadRequest for an unknown hash name."""
    if hash == "sha256":
        return sha256(data).digest()[:DIGEST_BYTES]
    if hash == "xxh3_128":
        return xxh3_128_digest(data)
    raise BadRequest(f"hash {hash!r} is unknown; sha256 and xxh3_128 are known")


def length_prefixed(data: bytes) -> bytes:
    """`data` behind its length as u32 little endian: what makes concatenations unambiguous."""
    return len(data).to_bytes(4, "little") + data


@dataclass(frozen=True, slots=True)
class Difference:
    """The first field, in name order, in which two families differ; "(absent)" stands for a field that one lacks."""

    field: str
    have: str
    got: str


class Family(Mapping[str, str]):
    """A frozen mapping of field names to values, both text. Equal families, however they were built, are equal bytes.

    Any thread may use it. Raises BadRequest for what is not text or exceeds FIELDS_MAX and FIELD_BYTES_MAX.
    """

    __slots__ = ("_encoded", "_fields")

    def __init__(self, fields: Mapping[str, str] | None = None, /, **more: str) -> None:
        merged = {**(fields or {}), **more}
        _check(merged)
        self._fields = {name: merged[name] for name in sorted(merged)}
        self._encoded = _encode(self._fields)

    def __getitem__(self, name: str) -> str:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __hash__(self) -> int:
        return hash(self._encoded)

    def __eq__(self, other: object) -> bool:
        return self._encoded == other._encoded if isinstance(other, Family) else NotImplemented

    def __repr__(self) -> str:
        return f"Family({self._fields!r})"

    @property
    def encoded(self) -> bytes:
        """The canonical encoding: what the fingerprint is the hash of."""
        return self._encoded

    def fingerprint(self, hash: str = "sha256") -> bytes:
        """16 bytes that stand for the whole family."""
        return digest(self._encoded, hash)

    def difference(self, got: "Family") -> Difference | None:
        """How `got` differs from this family; None when it does not."""
        for name in sorted({*self._fields, *got._fields}):
            have, other = self._fields.get(name, "(absent)"), got._fields.get(name, "(absent)")
            if (name in self._fields, have) != (name in got._fields, other):
                return Difference(name, have, other)
        return None


def _check(fields: Mapping[str, str]) -> None:
    if len(fields) > FIELDS_MAX:
        raise BadRequest(f"family has {len(fields)} fields; at most {FIELDS_MAX} are allowed")
    for name, value in fields.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadRequest(f"family field {name!r} = {value!r}: names and values must be text")
        if not name or max(_utf8_bytes(name), _utf8_bytes(value)) > FIELD_BYTES_MAX:
            raise BadRequest(f"family field {name[:40]!r}: name and value must have at most {FIELD_BYTES_MAX} bytes")


def _utf8_bytes(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as exc:
        raise BadRequest(f"family text {text[:40]!r} is not valid Unicode") from exc


def _encode(fields: Mapping[str, str]) -> bytes:
    """Sorted by the UTF-8 bytes of the names, so that other languages need no knowledge of Python's string order."""
    pairs = sorted((name.encode(), value.encode()) for name, value in fields.items())
    parts = [_DOMAIN, len(pairs).to_bytes(4, "little")]
    for name, value in pairs:
        parts += [length_prefixed(name), length_prefixed(value)]
    return b"".join(parts)
