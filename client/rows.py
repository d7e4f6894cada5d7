"""What stands inside messages of the local socket; the messages themselves are in `wire.py`, which has these names too."""

from enum import StrEnum

import msgspec


class Failure(msgspec.Struct, frozen=True, array_like=True):
    index: int
    error: str
    message: str
    data: dict[str, str | int | float]


class BlockStat(msgspec.Struct, frozen=True, array_like=True):
    key: bytes
    size: int
    tiers: list[int]
    checksum: bytes
    parent: bytes
    depth: int
    tokens: int
    hits: int
    pins: int
    leases: int
    ttl_seconds: float
    """Seconds left, 0 = none."""
    durable: bool
    created_seconds: float  # wall clock


class TierStat(msgspec.Struct, frozen=True, array_like=True):
    tier: int
    capacity_bytes: int
    used_bytes: int
    blocks: int
    pinned_bytes: int
    leased_bytes: int
    reserved_bytes: int
    policy: str
    state: str  # ok, populating, degraded


class NamespaceKind(StrEnum):
    KV = "kv"
    OBJECT = "object"


class NamespaceStat(msgspec.Struct, frozen=True, array_like=True):
    name: str
    kind: NamespaceKind
    tenant: str
    shard: str
    mode: str
    family: dict[str, str]
    blocks: int
    bytes: int


class HintFields(msgspec.Struct, frozen=True, array_like=True):
    """`tiers.block.Hint` on the wire, without the tenant, which the daemon knows from the credential."""

    priority: int = 128
    conversation: int = 0
    turn: int = 0
    expected_output: int = 0
    public: bool = False
