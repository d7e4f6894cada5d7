"""Which node has which block, as the rest of the daemon asks it. Soft state: a wrong or missing answer costs a miss, never a wrong
byte, since who is said to have a block is asked for it and may say no.

Implementations: `static.py` (asks every node of a list), `valkey.py` (a Valkey or Redis server keeps it). All of it belongs to the
event loop's thread.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import xxhash

from mooncask.tiers.namespace import NamespaceSpec

INCARNATION_BYTES = 16
_NAMESPACE_DOMAIN = b"mooncask namespace 1\0"


class Release(Enum):
    """What the directory says to a node that would like to forget a block."""

    ELSEWHERE = "another living node has it, and relies on this one no more"
    LAST = "no other node has it"
    NOT_NOW = "news of this block is still on its way"
    UNKNOWN = "who would know does not answer"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node as the directory knows it. Bytes; `load` is the number of blocks that it is bringing in now."""

    name: str
    incarnation: bytes
    address: str
    transports: tuple[str, ...] = ("tcp",)
    capacity_bytes: int = 0
    load: int = 0
    used_bytes: int = 0
    seen_seconds: float = 0.0
    """Since it was heard of last."""


class Directory(Protocol):
    """Nothing here raises but what is said; whatever fails is `state` and a shorter answer."""

    kind: str
    """"static" or "valkey"."""
    on_shared: Callable[[bytes, Sequence[bytes]], None]
    """Called with blocks that were announced, and that others had announced before: it must only take note."""

    @property
    def state(self) -> str:
        """ "ok", or "down since 12:04:11: why"."""
        ...

    async def lookup(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[list[bytes]]:
        """Per key the incarnations of other living nodes that are said to have it; [] = none is known. What is not known by
        `deadline` (loop time) is []."""
        ...

    def node(self, incarnation: bytes) -> NodeRecord | None:
        """The node of an incarnation that `lookup` named a moment ago; None: it is gone."""
        ...

    async def nodes(self, deadline: float) -> list[NodeRecord]:
        """The other nodes that are known and live."""
        ...

    def announce(self, ns_id: bytes, keys: Sequence[bytes]) -> None:
        """This node has these from now on. Costs its caller an append; what finds no room in the queue is dropped and counted."""
        ...

    def withdraw(self, ns_id: bytes, keys: Sequence[bytes]) -> None:
        """This node has them no longer. As `announce`."""
        ...

    def not_there(self, ns_id: bytes, keys: Sequence[bytes], incarnation: bytes) -> None:
        """A node that is said to have these was asked and has them not."""
        ...

    async def release(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[Release]:
        """This node would like to forget these. Where the answer is ELSEWHERE it is no holder any more, and nobody else gets that
        answer because of its copy. May be asked again. Raises PeerUnavailable and DeadlineExceeded; it may have been done then."""
        ...

    async def close(self) -> None: ...


def new_incarnation(name: str, time_ns: int | None = None) -> bytes:
    """16 bytes for this run of the node called `name`: a digest of the name, then an epoch that grows with each start."""
    epoch = time.time_ns() if time_ns is None else time_ns
    return node_hash(name) + epoch.to_bytes(8, "big")


def node_hash(name: str) -> bytes:
    return xxhash.xxh3_64_digest(name.encode())


def namespace_id(spec: NamespaceSpec) -> bytes:
    """16 bytes that are the same on every node for KV that may be exchanged, and differ where it may not."""
    digest = hashlib.sha256(_NAMESPACE_DOMAIN)
    for part in (spec.kind.encode(), spec.fingerprint, spec.shard.encode(), spec.tenant.encode()):
        digest.update(len(part).to_bytes(4, "little"))
        digest.update(part)
    return digest.digest()[:16]
