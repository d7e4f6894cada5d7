"""What the daemon's JSON pages under /-/v1/ say and take, for the command line, the file-system view and the dashboard.

Each page's path stands in its answer's docstring; docs/HTTP.md has them as a table with examples. Keys of KV namespaces are hex,
keys of objects text; tiers are "hbm", "dram", "nvme"; times are wall-clock seconds; rates are a mean over the last seconds.
Nothing here does I/O.
"""

import msgspec


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Fields may be added; readers ignore what they do not know."""


# --- what is here ----------------------------------------------------------------------------------------------------


class Block(Answer, frozen=True):
    """GET /-/v1/blocks/NS/KEY: one block. DELETE evicts it; POST .../pin, .../unpin, .../ttl?seconds=S (0 = none)."""

    namespace: str
    key: str
    size_bytes: int
    tiers: list[str]
    checksum: str
    parent: str = ""
    depth: int = 0
    tokens: int = 0
    hits: int = 0
    pins: int = 0
    leases: int = 0
    ttl_seconds: float = 0.0
    durable: bool = False
    created_seconds: float = 0.0


class ChainNode(Answer, frozen=True):
    """One block as a node of the prefix tree."""

    key: str
    parent: str
    depth: int
    tokens: int
    size_bytes: int
    tiers: list[str]
    hits: int
    created_seconds: float
    children: int
    """Blocks that continue this one."""
    blocks_below: int
    """Blocks of the whole subtree, itself included, a moment ago: trees of large namespaces are gathered every few seconds."""


class Children(Answer, frozen=True):
    """GET /-/v1/chains/NS?parent=KEY&after=KEY&limit=N: what continues `parent`; without it, where chains begin."""

    namespace: str
    parent: str
    nodes: list[ChainNode]
    more: bool = False
    counted_max: int = 10_000
    """Blocks of the namespace when they were counted: no subtree has more."""


class Path(Answer, frozen=True):
    """GET /-/v1/chains/NS/KEY: the blocks from where the chain begins to KEY, in order; of more than 16,384 the last ones."""

    namespace: str
    nodes: list[ChainNode]


class Tips(Answer, frozen=True):
    """GET /-/v1/tips/NS?after=KEY&limit=N: blocks that nothing continues, in key order; each names one whole chain."""

    namespace: str
    nodes: list[ChainNode]
    more: bool = False


# --- why -------------------------------------------------------------------------------------------------------------


class WhyRequest(Answer, frozen=True):
    """POST /-/v1/why takes this: a prompt as token ids, or its chain of keys in hex. One of the two."""

    namespace: str
    tokens: list[int] = []
    keys: list[str] = []
    cache_salt: str = ""


class Matched(Answer, frozen=True):
    """POST /-/v1/match takes a `WhyRequest` and answers this: the usable prefix, counted as a look-up is."""

    namespace: str
    blocks: int
    block_tokens: int
    hit_blocks: int
    hit_tokens: int
    tiers: list[str]
    """Of each block of the prefix, the fastest."""
    seconds: list[float]
    """How long blocks 0..i take to load, as the daemon expects."""


class Elsewhere(Answer, frozen=True):
    """Another namespace of the caller has a longer prefix of the same tokens."""

    namespace: str
    blocks: int
    differs: list[str]
    """What keeps the two apart: 'dtype: "bfloat16" here, "float16" there', fields of the family, shard, or the salt."""


class WhyBlock(Answer, frozen=True):
    """What became of one block of the chain."""

    index: int
    key: str
    verdict: str
    """hit, never_stored, evicted, expired, deleted, quarantined, replaced, lost_dirty, being_written, expected, forgotten (the log
    does not reach back far enough to tell)."""
    text: str
    """The verdict as a sentence: 'evicted at 12:04:11 from nvme by lru'."""
    tiers: list[str] = []
    time_seconds: float = 0.0
    tier: str = ""
    policy: str = ""


class Why(Answer, frozen=True):
    """POST /-/v1/why: the usable prefix and the first block that missed."""

    namespace: str
    blocks: int
    block_tokens: int
    hit_blocks: int
    hit_tokens: int
    tail_tokens: int
    """Tokens behind the last whole block: they are never stored."""
    first_miss: WhyBlock | None
    later_hits: int
    """Blocks behind the first miss that are here and can't be used without it."""
    chain: list[WhyBlock]
    """Every block asked about, up to 4,096."""
    elsewhere: list[Elsewhere] = []
    recomputed: str = ""
    """Which part of it an engine computed although it was here, since loading would have taken longer: a sentence."""
    log_since_seconds: float = 0.0
    advice: str = ""  # what to do next, empty on a full hit


# --- what happens ----------------------------------------------------------------------------------------------------


class Departure(Answer, frozen=True):
    """A block that left, as the bounded log of departures keeps it."""

    time_seconds: float
    namespace: str
    key: str
    tier: str
    """The last tier it was in."""
    reason: str
    """evicted, expired, deleted, quarantined, replaced, lost_dirty, withdrawn, dropped."""
    policy: str = ""
    size_bytes: int = 0


class Miss(Answer, frozen=True):
    """A look-up that did not find its whole prefix."""

    time_seconds: float
    namespace: str
    key: str
    """Of the first block that missed."""
    index: int
    asked_blocks: int
    hit_blocks: int
    verdict: str
    text: str


class Events(Answer, frozen=True):
    """GET /-/v1/events?limit=N: the newest departures and misses, newest first."""

    departures: list[Departure]
    misses: list[Miss]
    since_seconds: float


class TierView(Answer, frozen=True):
    tier: str
    capacity_bytes: int
    used_bytes: int
    blocks: int
    pinned_bytes: int
    leased_bytes: int
    reserved_bytes: int
    policy: str
    state: str


class Flow(Answer, frozen=True):
    """Bytes since the start and bytes a second. `kind`: put, hit, miss, promote, demote, load, write, evict, http_in, http_out.

    A miss has no bytes of its own: it is counted in the bytes that the namespace's blocks have.
    """

    kind: str
    tier: str
    """The tier the bytes came to (promote, load, put), left (evict, demote) or were found in (hit); empty where none is meant."""
    total_bytes: int
    rate_bytes: float
    total: int
    """Blocks."""
    rate: float


class NamespaceView(Answer, frozen=True):
    name: str
    kind: str
    tenant: str
    shard: str
    mode: str
    blocks: int
    size_bytes: int
    block_tokens: int
    requested_tokens: int
    hit_tokens: int
    hit_rate: float
    """Of tokens of contiguous prefixes, over the last minutes; -1 = nothing was asked."""


class HotChain(Answer, frozen=True):
    """A chain that is read often, named by its last block that is read as often as the others."""

    namespace: str
    key: str
    depth: int
    tokens: int
    """From the chain's beginning to `key`."""
    size_bytes: int
    hits: int
    rate: float
    tiers: list[str]


class ClientView(Answer, frozen=True):
    pid: int
    uid: int
    name: str
    tenant: str
    connections: int
    leases: int
    leased_bytes: int
    reservations: int


class WhatIf(Answer, frozen=True):
    """A ghost cache's answer: what the hit rate would be with other memory or another policy."""

    name: str
    """dram_x2, nvme_x2, policy_s3fifo, ..."""
    text: str
    capacity_bytes: int
    policy: str
    hit_rate: float
    """-1 = not enough was asked to tell."""
    sampled_accesses: int


class PeerView(Answer, frozen=True):
    """Another node. `state`: linked, known (by the directory, not used yet), failing (`problem` says why) or gone."""

    name: str
    state: str
    address: str
    incarnation: str = ""
    """16 bytes in hex: its name's digest and when it was started."""
    transport: str = ""
    blocks_pulled: int = 0
    bytes_pulled: int = 0
    """Of blocks that came from there, were right, and are stored."""
    blocks_pushed: int = 0
    """Blocks that it took because this node asked it to."""
    bytes_received: int = 0
    rate_bytes: float = 0.0
    """Bytes a second while something was being received; 0 = nothing yet."""
    failures: int = 0
    not_there: int = 0
    """Blocks that it was said to have, and had not."""
    wrong: int = 0
    """Blocks whose bytes were unlike their checksum: never served."""
    leases: int = 0
    round_trip_seconds: float = 0.0
    seen_seconds: float = -1.0
    """Since the directory heard of it; -1 = it does not know."""
    problem: str = ""


class Peers(Answer, frozen=True):
    """GET /-/v1/peers: this node among others. A node that is alone answers with an empty `address`."""

    node: str
    incarnation: str = ""
    address: str = ""
    directory: str = ""
    """static or valkey; empty for a node that is alone."""
    directory_state: str = ""
    """ok, or "down since 12:04:11: why"."""
    pulls: int = 0
    """Blocks that are on their way here now."""
    blocks_pulled: int = 0
    bytes_pulled: int = 0
    replicas: int = 0
    """Blocks of this node that others are thought to have too."""
    spares: int = 0
    """Of these, those that another one is known to keep: the first to leave."""
    blocks_pushed: int = 0
    pushes_refused: int = 0
    hot_blocks: int = 0
    """Blocks that others read so often that they were to be copied to more nodes."""
    replicas_dropped: int = 0
    last_copies_kept: int = 0
    """Blocks that would have been forgotten as replicas, and turned out to be the last."""
    peers: list[PeerView] = []


class ReplicateRequest(Answer, frozen=True):
    """POST /-/v1/replicate takes this: blocks as of a `WhyRequest`, and the node (its name, or host:port) that is to have them."""

    namespace: str
    to: str
    tokens: list[int] = []
    keys: list[str] = []
    cache_salt: str = ""
    deadline_seconds: float = 30.0


class Replicated(Answer, frozen=True):
    """POST /-/v1/replicate answers this when the other node has the blocks or has refused them."""

    node: str
    blocks: int
    missing: int = 0
    """Not on this node: nothing was done about them."""
    there: int = 0
    """Were at the other node already."""
    copied: int = 0
    copied_bytes: int = 0
    refused: int = 0
    reason: str = ""
    """Why the last of those were refused."""


class Warming(Answer, frozen=True):
    """POST /-/v1/warm takes a `WhyRequest` and answers this at once; the blocks come in the background."""

    namespace: str
    blocks: int
    in_memory: int = 0
    coming: int = 0
    """From NVMe or from other nodes."""
    left_out: int = 0
    """More than may be on their way at a time."""
    missing: int = 0
    """No node is known to have them."""


class Overview(Answer, frozen=True):
    """GET /-/v1/overview: the screen of `mooncask top` and of the dashboard. `rates` are over the last `window_seconds`."""

    node: str
    version: str
    ready: bool
    time_seconds: float
    uptime_seconds: float
    window_seconds: float
    tiers: list[TierView]
    flows: list[Flow]
    namespaces: list[NamespaceView]
    hot_chains: list[HotChain]
    clients: list[ClientView]
    what_if: list[WhatIf] = []
    peers: list[PeerView] = []
    counters: dict[str, int] = {}
    hit_rate: float = -1.0
    requests_rate: float = 0.0
    waiting_for_room: int = 0
    dirty_bytes: int = 0


class ConfigPage(Answer, frozen=True):
    """GET /-/v1/config: every key as it is in force, secrets left out; `reloadable` are those that SIGHUP can change."""

    sections: dict[str, dict[str, object]]
    file: str = ""
    reloadable: list[str] = []
