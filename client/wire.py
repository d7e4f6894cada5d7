"""The messages of the local socket, exactly as docs/PROTOCOL.md publishes them. Nothing here does I/O.

A frame is a u32 (little endian) length and that many bytes of msgpack: an array whose first element is the message's
tag and whose second is the request's id. A client may have many requests under way; replies carry the request's id and
may come in another order. Batches travel as columns: item i of every list belongs to item i of the others.

Deadlines are remaining milliseconds, counted by the receiver's monotonic clock from the frame's arrival.
Message 1 of a connection is Hello; its reply Welcome carries file descriptors (SCM_RIGHTS), see `Welcome.descriptors`.
"""

import struct
from enum import IntEnum

import msgspec

from mooncask.client import rows

PROTOCOL = 1
FRAME_BYTES_MAX = 4 << 20
BATCH_MAX = 4096
KEY_BYTES_MAX = 1024
HEADER = struct.Struct("<I")

BlockStat = rows.BlockStat
Failure = rows.Failure
HintFields = rows.HintFields
NamespaceKind = rows.NamespaceKind
NamespaceStat = rows.NamespaceStat
TierStat = rows.TierStat


class Tier(IntEnum):
    """The numbers in `tiers` fields; NONE: not here, PEER: at another node, COLD: in the bucket below NVMe."""

    NONE = 0
    HBM = 1
    DRAM = 2
    NVME = 3
    PEER = 4
    COLD = 5


class CommitState(IntEnum):
    FAILED = 0
    PUBLISHED = 1
    DURABLE = 2
    HAVE_IT = 3


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    id: int


# --- requests --------------------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag=1):
    """Introduces a process. `process` is 16 random bytes, the same for all connections of one process: leases belong to it."""

    protocol: int
    client: str
    process: bytes
    want_write: bool = True
    resume: list[int] = []
    """All leases of the process whose views still live. Those it names and no other connection holds are this connection's
    now; those of the process that no connection holds and that are not named are freed."""


class Open(Message, frozen=True, tag=2):
    """Opens a namespace, made if need be. An empty `name` is kv-<16 hex>, derived from family, shard and tenant."""

    name: str
    kind: NamespaceKind = NamespaceKind.KV
    family: dict[str, str] = {}
    shard: str = ""
    mode: str = ""
    """write_through, write_back or memory; empty: as it is, or the daemon's default for a new one."""
    hash: str = "sha256"
    create: bool = True


class Match(Message, frozen=True, tag=3):
    """The longest prefix of `keys` (a chain from its first block on) that is here. Changes nothing."""

    namespace: int
    keys: list[bytes]


class Acquire(Message, frozen=True, tag=4):
    """Leases blocks. DRAM hits are answered at once, the rest as they arrive; the last reply has `more` = false."""

    namespace: int
    keys: list[bytes]
    deadline_ms: int
    wait: bool = False
    """Also wait for keys that are reserved or expected by somebody."""
    verify: bool = False
    want_token: bool = False
    hint: HintFields | None = None


class Adopt(Message, frozen=True, tag=5):
    """Moves all leases behind an Acquire's token to this process (same uid and tenant, within 5 s, once), or lets it write the
    places behind a Reserve's, as long as they are reserved."""

    token: bytes


class Expect(Message, frozen=True, tag=6):
    """This process will put `keys` within `ttl_ms`: waiting Acquires wait for them until then, or until it dies."""

    namespace: int
    keys: list[bytes]
    ttl_ms: int


class Release(Message, frozen=True, tag=7):
    """Ends leases; any connection of their process may. With id 0 there is no reply; unknown ones are counted."""

    leases: list[int]
    generations: list[int]


class Reserve(Message, frozen=True, tag=8):
    """Places for new blocks: all of the batch or none, by the deadline. Empty `parents`/`depths`/`tokens` mean unknown."""

    namespace: int
    keys: list[bytes]
    sizes: list[int]
    deadline_ms: int
    parents: list[bytes] = []
    depths: list[int] = []
    tokens: list[int] = []
    layers: int = 0
    hint: HintFields | None = None
    share: bool = False  # others may write there too: Reserved carries a token for their Adopt


class Advance(Message, frozen=True, tag=9):
    """Layers [0, layer) of these reservations' payloads are written."""

    reservations: list[int]
    layer: int


class Commit(Message, frozen=True, tag=10):
    """Publishes blocks. `digests` (xxh3_128, big endian) are compared if given; empty bytes compare nothing."""

    reservations: list[int]
    generations: list[int]
    deadline_ms: int
    digests: list[bytes] = []
    durable: bool = False  # answer when the blocks survive a crash, not when they are readable
    token_ids: list[bytes] = []  # each block's, u32 little endian, for routers (docs/KV-EVENTS.md); kept nowhere


class Abort(Message, frozen=True, tag=11):
    reservations: list[int]
    generations: list[int]


class Pin(Message, frozen=True, tag=12):
    """Pins count: n pins need n unpins. A block that is pinned is not evicted."""

    namespace: int
    keys: list[bytes]


class Unpin(Message, frozen=True, tag=13):
    namespace: int
    keys: list[bytes]


class SetTtl(Message, frozen=True, tag=14):
    """Blocks vanish `ttl_ms` from now; 0 = they stay until evicted."""

    namespace: int
    keys: list[bytes]
    ttl_ms: int


class Evict(Message, frozen=True, tag=15):
    """Deletes blocks from all tiers, durably. Those that are leased stay readable for their holders."""

    namespace: int
    keys: list[bytes]


class Stat(Message, frozen=True, tag=16):
    """With keys: those blocks. Without: the daemon, its tiers and its namespaces."""

    namespace: int = 0
    keys: list[bytes] = []


class ListBlocks(Message, frozen=True, tag=17):
    """Keys of a namespace in byte order, after `after`, that start with `prefix`."""

    namespace: int
    prefix: bytes = b""
    after: bytes = b""
    limit: int = 1000


class Verify(Message, frozen=True, tag=18):
    """Reads these blocks (all tiers they are in) and checks them; wrong copies are quarantined."""

    namespace: int
    keys: list[bytes]
    deadline_ms: int


class Recomputed(Message, frozen=True, tag=19):
    """This process computes `blocks` of a usable prefix, from `key` on, since loading them from `tier` would take longer: for
    metrics and `why`. With id 0 there is no reply."""

    namespace: int
    key: bytes
    blocks: int
    tier: int
    load_seconds: float
    compute_seconds: float


class Replicate(Message, frozen=True, tag=20):
    """Copies blocks of this node to the node called `to` (or at that host:port), which pulls them from here. Answered when it has
    them, has refused them, or at the deadline."""

    namespace: int
    keys: list[bytes]
    to: str
    deadline_ms: int


class Warm(Message, frozen=True, tag=21):
    """Begins to bring blocks into DRAM, from NVMe or from other nodes. Answered at once."""

    namespace: int
    keys: list[bytes]


ReadRequest = Match | Acquire | Adopt | Expect | Release | Recomputed
WriteRequest = Reserve | Advance | Commit | Abort
BlockRequest = Pin | Unpin | SetTtl | Evict | Stat | ListBlocks | Verify | Replicate | Warm
Request = Hello | Open | ReadRequest | WriteRequest | BlockRequest


# --- replies ---------------------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True, tag=101):
    protocol: int
    version: str
    daemon: bytes
    """16 bytes, new at every start of the daemon."""
    arena_bytes: int
    populated_bytes: int
    descriptors: list[str]
    """What the file descriptors beside this frame are, in order: `arena` (read-only), `arena-writable` or `staging`."""
    staging_bytes: int
    resumed: list[int]
    block_bytes_max: int
    batch_max: int
    lease_ms_max: int
    hbm_device: str = ""
    hbm_bytes: int = 0
    hbm_handle: bytes = b""


class Opened(Message, frozen=True, tag=102):
    namespace: int
    """Handle for this connection's further requests."""
    name: str
    kind: NamespaceKind
    fingerprint: bytes
    salt: bytes
    """The tenant's salt; a request's cache_salt is appended to it."""
    root: bytes
    """d[0] for an empty cache_salt."""
    mode: str
    tenant: str


class Matched(Message, frozen=True, tag=103):
    """`tiers[i]`: block i's fastest tier; `seconds[i]`: how long blocks 0..i will take to load. As long as the prefix."""

    tiers: bytes
    seconds: list[float]


class Acquired(Message, frozen=True, tag=104):
    """Leased extents: item `index[i]` of the request lies at [offset, offset + size) of the arena."""

    index: list[int]
    leases: list[int]
    generations: list[int]
    offsets: list[int]
    sizes: list[int]
    tiers: bytes
    missed: list[int]
    more: bool
    token: bytes = b""


class Adopted(Message, frozen=True, tag=105):
    keys: list[bytes]
    leases: list[int]
    generations: list[int]
    offsets: list[int]
    sizes: list[int]
    tiers: bytes


class Progress(Message, frozen=True, tag=106):
    """Layers [0, layer) of item `index` of a waiting Acquire are written by its producer, but not yet published."""

    index: int
    layer: int
    layers: int


class Reserved(Message, frozen=True, tag=107):
    """Reservation 0 means `have_it`: nothing to write. Offsets are in the descriptor that Welcome gave for writing."""

    reservations: list[int]
    generations: list[int]
    offsets: list[int]
    token: bytes = b""


class Committed(Message, frozen=True, tag=108):
    states: bytes
    """A CommitState an item."""
    failures: list[Failure] = []


class Done(Message, frozen=True, tag=109):
    """The request took effect; `count` items were changed where that says something."""

    count: int = 0


class Blocks(Message, frozen=True, tag=110):
    """Blocks in the order asked; None for those that are not here."""

    blocks: list[BlockStat | None]
    more: bool = False


class Status(Message, frozen=True, tag=111):
    node: str
    version: str
    uptime_seconds: float
    ready: bool
    tiers: list[TierStat]
    namespaces: list[NamespaceStat]
    counters: dict[str, int]
    clients: int


class Replicated(Message, frozen=True, tag=112):
    """How many blocks: are not on this node, were at the other one already, were copied, were refused (`reason`: the last one's)."""

    node: str
    missing: int
    there: int
    copied: int
    copied_bytes: int
    refused: int
    reason: str


class Warming(Message, frozen=True, tag=113):
    """How many blocks: are in DRAM, are on their way, were left out since too many are, are not known to be anywhere."""

    in_memory: int
    coming: int
    left_out: int
    missing: int


class Failed(Message, frozen=True, tag=199):
    """The request failed as a whole: `error` is a class of mooncask.errors, `data` its attributes."""

    error: str
    message: str
    data: dict[str, str | int | float]


Placed = Opened | Matched | Acquired | Adopted | Progress | Reserved | Committed
Reply = Welcome | Placed | Done | Blocks | Status | Replicated | Warming | Failed


def frame(encoder: msgspec.msgpack.Encoder, message: Message) -> bytes:
    """A whole frame, ready to send."""
    buffer = bytearray(HEADER.size)
    encoder.encode_into(message, buffer, HEADER.size)
    HEADER.pack_into(buffer, 0, len(buffer) - HEADER.size)
    return bytes(buffer)
