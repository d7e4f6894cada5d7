"""Namespaces: what KV may be mixed, and the registry that gives each its number for life.

Who may use a namespace is the daemon's business; where blocks lie is the catalogue's.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from sortedcontainers import SortedList

from mooncask.errors import FamilyMismatch
from mooncask.tiers.block import WriteMode

REGISTRY_ID = 0
"""The number under which the registry's own state (the next free number) is saved; namespaces count from 1."""


class NamespaceSpec(msgspec.Struct, frozen=True):
    """What a namespace is. `family` maps field names to values; `fingerprint` is its digest (docs/HASHING.md)."""

    name: str
    kind: Literal["kv", "object", "parts"] = "kv"
    """`parts`: a hidden one beside an object namespace, for the parts of objects that are longer than a block."""
    family: dict[str, str] = {}
    shard: str = ""
    tenant: str = "default"
    mode: WriteMode = WriteMode.WRITE_THROUGH
    fingerprint: bytes = b""

    @property
    def evictable(self) -> bool:
        """Whether blocks may be forgotten under pressure: an object that somebody stored by name may not."""
        return self.kind == "kv"

    @property
    def hidden(self) -> bool:
        """Whether nobody but the daemon itself may see or use it."""
        return self.kind == "parts"


def parts_name(name: str) -> str:
    """What the hidden namespace beside the one called `name` is called: no user's namespace can be."""
    return f"{name}/parts"


class SavedNamespace(msgspec.Struct, frozen=True):
    """A namespace as the disk index keeps it."""

    spec: NamespaceSpec
    next_id: int = 0


@dataclass(slots=True, eq=False)
class Namespace:
    """A live namespace. `index` maps keys to catalogue slots; only the catalogue writes it."""

    id: int
    spec: NamespaceSpec
    index: dict[bytes, int] = field(default_factory=dict)
    stored_bytes: int = 0
    ttl_blocks: int = 0
    """How many blocks have a time to live: while it is 0, lookups need not check."""
    _ordered: SortedList | None = None

    @property
    def blocks(self) -> int:
        return len(self.index)

    def keys_after(self, prefix: bytes, after: bytes) -> Iterator[bytes]:
        """Keys in byte order that start with `prefix` and come after `after`.

        In namespaces that are not kept in order the order is built at the first call and kept up from then on.
        """
        for key in self.keep_order().irange(minimum=max(prefix, after)):
            if key <= after and after:
                continue
            if not key.startswith(prefix):
                return
            yield key

    def keep_order(self) -> SortedList:
        """The keys in order, from now on: cheap where there are none yet, or where they came in order, as from the index. Else
        a million takes a second in which the loop serves nobody."""
        ordered = self._ordered
        if ordered is None:
            ordered = self._ordered = SortedList(self.index)
        return ordered

    def add_key(self, key: bytes, slot: int) -> None:
        self.index[key] = slot
        if self._ordered is not None:
            self._ordered.add(key)

    def remove_key(self, key: bytes) -> None:
        del self.index[key]
        if self._ordered is not None:
            self._ordered.remove(key)


class NamespaceRegistry:
    """All namespaces by name and by number. Numbers are never reused, so that bytes on disk can't change owner."""

    def __init__(self) -> None:
        self._by_name: dict[str, Namespace] = {}
        self._by_id: dict[int, Namespace] = {}
        self.next_id = 1

    def __iter__(self) -> Iterator[Namespace]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Namespace | None:
        return self._by_name.get(name)

    def by_id(self, number: int) -> Namespace | None:
        return self._by_id.get(number)

    def check(self, namespace: Namespace, spec: NamespaceSpec) -> None:
        """Raises FamilyMismatch, naming the first field that differs, when `spec` can't share this namespace."""
        for name, have, got in differences(namespace.spec, spec):
            raise FamilyMismatch(spec.name, name, have, got)

    def new(self, spec: NamespaceSpec) -> Namespace:
        """A namespace with a number of its own that nobody finds until `enter`."""
        namespace = Namespace(self.next_id, spec)
        self.next_id += 1
        if not spec.evictable:
            namespace.keep_order()  # objects are listed all the time, KV blocks seldom
        return namespace

    def enter(self, namespace: Namespace) -> None:
        self._by_name[namespace.spec.name] = namespace
        self._by_id[namespace.id] = namespace

    def change_mode(self, namespace: Namespace, mode: WriteMode) -> None:
        namespace.spec = msgspec.structs.replace(namespace.spec, mode=mode)

    def remove(self, namespace: Namespace) -> None:
        del self._by_name[namespace.spec.name]
        del self._by_id[namespace.id]

    def restore(self, saved: dict[int, bytes]) -> None:
        """Take over what an earlier run saved."""
        for number, blob in saved.items():
            entry = msgspec.msgpack.decode(blob, type=SavedNamespace)
            self.next_id = max(self.next_id, number + 1, entry.next_id)
            if number != REGISTRY_ID:
                self.enter(Namespace(number, entry.spec))

    def blob(self, namespace: Namespace) -> bytes:
        return msgspec.msgpack.encode(SavedNamespace(namespace.spec))

    def own_blob(self) -> bytes:
        return msgspec.msgpack.encode(SavedNamespace(NamespaceSpec(""), self.next_id))


def differences(have: NamespaceSpec, got: NamespaceSpec) -> Iterator[tuple[str, str, str]]:
    """(field, have, got) for whatever keeps two workers from exchanging KV, family fields first."""
    for name in sorted(have.family.keys() | got.family.keys()):
        ours, theirs = have.family.get(name, "(absent)"), got.family.get(name, "(absent)")
        if ours != theirs:
            yield name, ours, theirs
    for name in ("kind", "shard", "tenant"):
        ours, theirs = getattr(have, name), getattr(got, name)
        if ours != theirs:
            yield name, ours, theirs
    if have.fingerprint != got.fingerprint:
        yield "fingerprint", have.fingerprint.hex(), got.fingerprint.hex()
