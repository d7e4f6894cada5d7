"""The rows of lists inside replies of the local socket; the replies themselves are in `wire.py`, which has these names too."""

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
