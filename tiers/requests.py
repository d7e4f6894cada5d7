"""What goes into the store and what comes out, as data."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from mooncask.tiers.block import NO_HINT, BlockRecord, Extent, Hint, TierName
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.nvme import NvmeConfig


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Everything the store has to know, decided once. Sizes in bytes, times in seconds."""

    dram_bytes: int
    dram_policy: str = "lru"
    huge_pages: bool = False
    trusted_writers: bool = True
    hbm_bytes: int = 0
    hbm_device: str = "cuda:0"
    nvme: NvmeConfig | None = None
    nvme_policy: str = "lru"
    dirty_bytes_max: int = 256 << 20
    promote_after: int = 2
    promote_window: int = 100_000
    """Keys the promotion sketch has room for; it halves its counts after ten times as many additions."""
    block_bytes_max: int = 64 << 20
    held_share: float = 0.7
    """Pinned, leased and reserved bytes stay under this share of a tier, else pin and reserve are refused."""
    queue_max: int = 4096
    load_seconds_max: float = 30.0
    scrub_bytes_per_second: float = 16 << 20
    copy_threads: int = 2


@dataclass(frozen=True, slots=True)
class PutRequest:
    """One block that somebody wants to write. `parent` empty = unknown or the chain's first."""

    key: bytes
    size: int
    parent: bytes = b""
    depth: int = 0
    tokens: int = 0
    hint: Hint = NO_HINT


@dataclass(slots=True, eq=False)
class Reservation:
    """A place to write one block into. Ends by commit or abort; `open` is False from then on."""

    namespace: Namespace
    request: PutRequest
    extent: Extent
    parent_slot: int
    """The catalogue's slot of the block that this one continues, which can't leave meanwhile; -1 = none."""
    open: bool = True


Condition = Callable[[BlockRecord | None], None]
"""Gets what stands under the key now, None = nothing; raises an error of mooncask.errors when these bytes may not replace it."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One reservation to publish. `digest`: the writer's xxh3_128, compared unless empty.

    `source`: where the bytes are, if not in place. `condition` is asked in the very step that publishes.
    `found`: the xxh3_128 of the bytes in place, where somebody has just read them; they are not read again then.
    """

    reservation: Reservation
    digest: bytes = b""
    source: memoryview | None = None
    attributes: bytes = b""
    """To be kept beside the payload; not looked at."""
    condition: Condition | None = None
    found: bytes = b""


@dataclass(frozen=True, slots=True)
class Match:
    """The usable prefix: block i is in tier `tiers[i]` (a TierName), blocks 0..i take about `seconds[i]` to load."""

    tiers: bytes
    seconds: list[float]

    def __len__(self) -> int:
        return len(self.tiers)


class BlockInfo(NamedTuple):
    """All that is known of one block. `ttl_seconds` is what is left of it, 0 = none.

    A tuple: one is made for every small object that is read, and a frozen dataclass of as many fields takes four times as long.
    """

    key: bytes
    size: int
    tiers: tuple[TierName, ...]
    checksum: bytes
    parent: bytes
    depth: int
    tokens: int
    hits: int
    pins: int
    leases: int
    ttl_seconds: float
    durable: bool
    created_seconds: float
    attributes: bytes = b""


@dataclass(frozen=True, slots=True)
class TierStatus:
    name: TierName
    capacity_bytes: int
    used_bytes: int
    blocks: int
    pinned_bytes: int
    leased_bytes: int
    reserved_bytes: int
    policy: str
    state: str


@dataclass(frozen=True, slots=True)
class StoreStatus:
    tiers: list[TierStatus] = field(default_factory=list)
    waiting_for_room: int = 0
    dirty_bytes: int = 0
