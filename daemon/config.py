"""The daemon's whole configuration as one frozen object. What a file or the environment says becomes one in
`daemon/config_source.py`; nothing here reads anything.

Every key with its default stands here once; sizes are bytes and durations seconds by the time they are here.
"""

import os
from collections.abc import Iterator
from typing import Annotated

import msgspec

from mooncask.tiers.block import WriteMode

Size = Annotated[int, msgspec.Meta(ge=0, extra={"quantity": "size"})]
Seconds = Annotated[float, msgspec.Meta(ge=0, extra={"quantity": "seconds"})]
Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
FileMode = Annotated[str, msgspec.Meta(pattern="^0?[0-7]{3}$")]
Policy = Annotated[str, msgspec.Meta(pattern="^(lru|fifo|lfu|s3fifo|2q|arc|sieve)$")]
ETag = Annotated[str, msgspec.Meta(pattern="^(md5|xxh3)$")]
Ack = Annotated[str, msgspec.Meta(pattern="^(durable|published)$")]
Rights = Annotated[str, msgspec.Meta(pattern="^(read|write)$")]
Spill = Annotated[str, msgspec.Meta(pattern="^(leaving|all|none)$")]
Transport = Annotated[str, msgspec.Meta(pattern="^(auto|tcp|rdma)$")]
KvEventsEncoding = Annotated[str, msgspec.Meta(pattern="^(maps|arrays)$")]
LogLevel = Annotated[str, msgspec.Meta(pattern="^(debug|info|warning|error)$")]


NOT_SHOWN = "(not shown)"


def is_secret(key: str) -> bool:
    """Whether the value of a key or variable of this name must appear nowhere."""
    name = key.rpartition(".")[2].lower()
    return name.endswith(("secret", "token", "password"))


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One [section] of the file. Shows itself without what is secret."""

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={NOT_SHOWN if is_secret(name) else repr(value)}" for name, value in _fields(self))
        return f"{type(self).__name__}({fields})"


class NodeSection(Section, frozen=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] = os.uname().nodename[:64] or "node"


class SocketSection(Section, frozen=True):
    path: str = ""
    """Empty: $XDG_RUNTIME_DIR/mooncask.sock, for root /run/mooncask/mooncask.sock, else /tmp/mooncask-<uid>/mooncask.sock."""
    mode: FileMode = "0600"
    trusted_writers: tuple[int, ...] = msgspec.field(default_factory=lambda: (os.getuid(),))
    """Uids that map the arena writable. Such a writer can alter any block; the others write to a staging area of their own."""
    staging: Size = 64 << 20
    """Bytes of one untrusted writer's staging area."""
    clients_max: Count = 256
    """Connections at a time."""


class HttpSection(Section, frozen=True):
    enabled: bool = True
    listen: str = "127.0.0.1:9470"
    """host:port; port 0 chooses a free one. Without credentials only loopback is accepted."""
    rate_min: Size = 256 << 10
    """Bytes a second below which a reader or writer of a body is cut off, after `grace`."""
    grace: Seconds = 30.0
    requests_max: Count = 256
    """Requests under way at a time; more are answered 503."""
    connections_max: Count = 1024
    """Connections at a time, over TCP and over the Unix socket; one more is answered 503 and closed."""
    idle: Seconds = 30.0
    """How long a connection may wait for the end of its next request's header."""
    tls_certificate: str = ""
    """PEM file with the certificate and what leads to its root; with `tls_key` the port speaks TLS and nothing else."""
    tls_key: str = ""
    admin_token: str = ""
    """Whoever sends it as "Authorization: Bearer ..." may see and use the pages under /-/. Empty: nobody."""
    domain: str = ""
    """Host name whose first label may be a bucket: with "s3.example", bucket.s3.example/key is /bucket/key. Empty: never."""


class S3Section(Section, frozen=True):
    etag: ETag = "md5"
    """What an object's ETag is: its MD5, as S3 clients expect, or "xxh3", which costs no second hash and no client takes for MD5."""
    ack: Ack = "durable"
    """When a PUT is answered in write_through namespaces: on NVMe, or as soon as the object can be read."""
    region: Annotated[str, msgspec.Meta(max_length=64)] = "us-east-1"
    """The region that signatures must name; empty: any."""


class DramSection(Section, frozen=True):
    capacity: Size = 1 << 30
    policy: Policy = "lru"
    """On the public conversation trace lru hits more than s3fifo and lfu from 10,000 blocks on (`mooncask replay`)."""
    huge_pages: bool = False


class HbmSection(Section, frozen=True):
    capacity: Size = 0
    """0 = no HBM tier."""
    device: str = "cuda:0"


class NvmeSection(Section, frozen=True):
    path: str = ""
    """Data folder; empty = no NVMe tier, and every namespace is of mode `memory`."""
    capacity: Size = 10 << 30
    segment: Size = 0
    """Bytes of one segment file, for a new folder; 0 chooses by the capacity, up to 256MiB."""
    direct: bool = True
    """false = also work on file systems that refuse O_DIRECT."""
    policy: Policy = "lru"
    dirty_max: Size = 256 << 20
    """Bytes published but not yet on NVMe above which reserve waits."""
    io_threads: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    scrub_rate: Size = 8 << 20
    """Bytes a second that the background scrub reads; 0 = no scrub."""
    mode: WriteMode = WriteMode.WRITE_THROUGH
    """Write mode of namespaces that ask for none."""


class PromotionSection(Section, frozen=True):
    promote_after: Count = 2
    """Reads, as far as the frequency sketch remembers them, after which a block moves up a tier."""
    window: Count = 100_000
    """Different blocks that the sketch has room for. After ten times as many reads it halves its counts: what it counts are
    loads from NVMe and, where there is an HBM tier, every use."""


class LimitsSection(Section, frozen=True):
    block_max: Size = 64 << 20
    """Bytes of one block; never more than the pinnable share of DRAM, nor than what one NVMe segment holds."""
    batch_max: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 4096
    requests_open_max: Count = 64
    """Requests of one connection under way at a time; more are not read until some are answered."""
    lease_max: Seconds = 300.0
    acquire_deadline_max: Seconds = 60.0
    reserve_deadline_max: Seconds = 60.0
    pin_share: Share = 0.7
    """Share of a tier that pinned, leased and reserved bytes may take together."""


class TenantSection(Section, frozen=True):
    uids: tuple[int, ...] = ()
    quota: Size = 0
    """Bytes stored and reserved; 0 = no limit."""


class CredentialSection(Section, frozen=True):
    """[credentials.<access key id>]: one S3 key. Once there is one, every request over TCP must be signed with one."""

    secret: str = ""
    """The secret access key; or `secret_file`."""
    secret_file: str = ""
    """File that holds the secret and that nobody but its owner may read."""
    tenant: str = "default"
    rights: Rights = "write"
    """"read" may not change anything."""


class GhostsSection(Section, frozen=True):
    """What the hit rate would be with other memory or another policy (docs/PLANNER.md)."""

    enabled: bool = True
    window: Seconds = 600.0
    """Hit rates are of the look-ups of so long."""
    cpu_share: Share = 0.005
    """Share of one core that sampled blocks may take; the sample gets smaller when they take more."""
    nvme: Size = 0
    """Bytes of the NVMe tier that is asked about where there is none; 0 = 8 times the DRAM."""


class RecorderSection(Section, frozen=True):
    """Look-ups as a trace, for `mooncask replay` and `mooncask plan` (docs/PLANNER.md)."""

    path: str = ""
    """Empty = nothing is recorded. The file before it is kept as PATH.1."""
    bytes_max: Size = 256 << 20
    """Of both files together."""
    records_max: Count = 1_000_000
    """Of one file."""
    rate_max: Count = 200
    """Records a second; above it some conversations are left out."""


class InsightSection(Section, frozen=True):
    """What the pages under /-/v1/ remember."""

    departures_max: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 16_384
    """Blocks that left, of which time, tier and reason are known exactly, at about 400 bytes each. Of a million before those it
    is known only that they were here."""


class ClusterSection(Section, frozen=True):
    """Other nodes whose blocks this one uses, and that use its own (docs/PEERS.md)."""

    listen: str = ""
    """host:port for the other nodes; empty = this node is alone. Other than loopback needs a secret."""
    advertise: str = ""
    """host:port under which the others reach it; empty = as `listen`."""
    secret: str = ""
    """What all nodes of a cluster know; or `secret_file`."""
    secret_file: str = ""
    """File that holds the secret and that nobody but its owner may read."""
    directory: str = ""
    """URL of a Valkey or Redis server that says which node has which block; several, separated by commas, are one Cluster."""
    directory_password: str = ""
    peers: tuple[str, ...] = ()
    """host:port of every other node, where there is no directory."""
    transport: Transport = "auto"
    connections: Annotated[int, msgspec.Meta(ge=1, le=16)] = 4
    """Connections to one peer that carry blocks, beside the one for everything else."""
    ttl: Seconds = 30.0
    """How long the directory keeps the record of a node that says nothing."""
    replicate_after: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 3
    """Reads of a block by other nodes within `replicate_window` above which it is copied to more of them; 0 = never."""
    replicate_window: Seconds = 60.0
    replicas_max: Annotated[int, msgspec.Meta(ge=1, le=16)] = 3
    """Nodes that have a block, this one and those that pulled it included, above which it is not copied ahead of need."""
    tls_certificate: str = ""
    """PEM file of this node's certificate; with `tls_key` and `tls_ca` nodes speak TLS and each checks the other's."""
    tls_key: str = ""
    tls_ca: str = ""


class KvEventsSection(Section, frozen=True):
    """What is stored here, told to routers in vLLM's format (docs/KV-EVENTS.md)."""

    endpoint: str = ""
    """ZeroMQ address to publish at; empty = nothing is published."""
    connect: bool = False
    """Connect to `endpoint`, where the router listens, instead of listening there."""
    public: bool = False
    """Also listen on other addresses than loopback: whoever connects can read prompts' tokens."""
    replay_endpoint: str = ""
    """Where subscribers ask for what they missed; empty = nowhere."""
    replay: Size = 64 << 20
    """Bytes of batches that are kept for that."""
    topic: Annotated[str, msgspec.Meta(max_length=255)] = ""
    """"{node}" in it is the node's name; llm-d wants "kv@{node}@<model>"."""
    namespaces: tuple[str, ...] = ()
    """Those that are told of; empty = all. A router that knows one model wants that model's only."""
    encoding: KvEventsEncoding = "maps"
    """"arrays" is what vLLM before 0.32 wrote, for routers of that time."""


class ColdSection(Section, frozen=True):
    """A bucket below NVMe that all nodes share (docs/COLD.md)."""

    bucket: str = ""
    """s3://bucket/prefix; empty = there is none."""
    endpoint: str = ""
    """URL of the S3 service; empty = AWS's of the region. Plain http:// is for loopback addresses only."""
    region: Annotated[str, msgspec.Meta(max_length=64)] = "us-east-1"
    access_key: str = ""
    """Empty: as AWS_ACCESS_KEY_ID and the other AWS_* variables say."""
    secret: str = ""
    """The secret access key; or `secret_file`."""
    secret_file: str = ""
    """File that holds the secret and that nobody but its owner may read."""
    spill: Spill = "leaving"
    """Which blocks go there: those that are about to leave the last local tier, "all", or "none" (this node only reads)."""
    spill_at: Share = 0.7
    """"leaving": how full the last local tier is when blocks begin to go, the first to leave first."""
    hits_min: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 0
    """Blocks that were read less often do not go; pinned ones do in any case."""
    age_min: Seconds = 0.0
    """Younger blocks do not go yet; pinned ones do in any case."""
    pack: Size = 64 << 20
    """Bytes of one object in the bucket, about."""
    pack_wait: Seconds = 10.0
    """A pack that is not full goes after so long."""
    queue_max: Size = 256 << 20
    """Bytes in memory of packs that are being filled or written."""
    deadline: Seconds = 2.0
    """The longest that a block is waited for, where the caller has more time."""
    requests_max: Annotated[int, msgspec.Meta(ge=1, le=256)] = 16
    """Reads of the bucket under way at a time."""
    blocks_max: Annotated[int, msgspec.Meta(ge=1, le=1 << 28)] = 1 << 20
    """Blocks of the bucket that this node knows, at about 200 bytes each; further ones are misses."""
    refresh: Seconds = 30.0
    """How often it looks for what other nodes have put there."""
    capacity: Size = 0
    """Bytes of this node's own packs, above which those that were not used for the longest time go; 0 = no limit."""
    keep: Seconds = 0.0
    """Own packs that were not used here for so long go; 0 = never."""
    grace: Seconds = 600.0
    """How long a pack that is dead is still there for those who do not know it yet."""
    dead_after: Seconds = 86400.0
    """How long after a node's last sign of life another one looks after its packs."""
    encryption_key_file: str = ""
    """File with 32 bytes as 64 hex digits, one key a line, that nobody but its owner may read: the first encrypts, all decrypt."""


class ShutdownSection(Section, frozen=True):
    flush_seconds: Seconds = 30.0


class LogSection(Section, frozen=True):
    level: LogLevel = "info"
    json: bool = False


def _fields(section: Section) -> Iterator[tuple[str, object]]:
    return ((name, getattr(section, name)) for name in section.__struct_fields__)


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set. Built once, at start, and handed to whoever needs a part of it."""

    node: NodeSection = NodeSection()
    socket: SocketSection = SocketSection()
    http: HttpSection = HttpSection()
    s3: S3Section = S3Section()
    dram: DramSection = DramSection()
    hbm: HbmSection = HbmSection()
    nvme: NvmeSection = NvmeSection()
    promotion: PromotionSection = PromotionSection()
    limits: LimitsSection = LimitsSection()
    tenants: dict[str, TenantSection] = {}
    credentials: dict[str, CredentialSection] = {}
    ghosts: GhostsSection = GhostsSection()
    recorder: RecorderSection = RecorderSection()
    insight: InsightSection = InsightSection()
    cluster: ClusterSection = ClusterSection()
    cold: ColdSection = ColdSection()
    kv_events: KvEventsSection = KvEventsSection()
    shutdown: ShutdownSection = ShutdownSection()
    log: LogSection = LogSection()

    @property
    def default_mode(self) -> WriteMode:
        return self.nvme.mode if self.nvme.path else WriteMode.MEMORY
