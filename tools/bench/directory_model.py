"""What a cluster of N nodes asks of its directory and of each node, from costs that were measured at a few; what gives out first.

Pure: costs and loads come in, a table comes out. Not here: contention, garbage, the network itself, and anything that a thousand
real nodes would show and sixteen do not; every line is its one cause alone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NODES_MAX = 1 << 20
LOOKUP_KEYS = 256
RETELL_SECONDS = 2400.0
"""How often each node tells all it has (`daemon/directory/valkey.py`)."""
LINKS_MAX = 256
"""That one daemon serves at a time (`daemon/transport/tcp/settings.py`)."""
FILES_MAX = 65_536
"""LimitNOFILE of packaging/systemd/mooncask.service."""
CLIENTS_MAX = 10_000
"""maxclients of Valkey and Redis as they come."""
SERVER_BYTES = 16 << 30
NETWORK_BYTES_A_SECOND = 10e9 / 8
STATIC_LOOKUPS_SHARE = 0.25
"""Of a core: what a daemon's event loop may spend on other nodes' questions and still serve its own."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured. CPU seconds are those of the server's one thread, or of a daemon's; bytes are sent and received together."""

    announce_cpu: float
    """A key."""
    announce_bytes: float
    lookup_cpu: float
    """A call of LOOKUP_KEYS keys."""
    lookup_bytes: float
    beat_cpu: float
    """A heartbeat, without the records that it reads."""
    beat_bytes: float
    record_cpu: float
    """One node's record, read by another."""
    record_bytes: float
    key_memory: float
    connections_per_node: float
    have_cpu: float
    """A daemon's, for one question of LOOKUP_KEYS keys of another one."""


@dataclass(frozen=True, slots=True)
class Load:
    """Of one node. Assumed, not measured."""

    published_per_second: float = 50.0
    """Blocks that come, by computing or by pulling; as many leave."""
    lookups_per_second: float = 20.0
    """Of LOOKUP_KEYS keys."""
    held: float = 100_000.0
    """Blocks that it has."""
    connections: float = 4.0
    """cluster.connections."""
    ttl_seconds: float = 30.0
    servers: float = 1.0
    """Of the directory: 1, or the members of a Cluster, over which its keys spread evenly."""

    @property
    def beats_per_second(self) -> float:
        return 1 / min(2.0, self.ttl_seconds / 3)

    @property
    def readings_per_second(self) -> float:
        """How often a node reads the records of all others."""
        return 3 / self.ttl_seconds


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that can give out: what `nodes` nodes use of it, and with how many it is used up."""

    what: str
    used: float
    limit: float
    unit: str
    breaks_at: int | None
    """None: not below NODES_MAX."""


Use = Callable[[float], float]


def model(costs: Costs, load: Load, nodes: int) -> list[Line]:
    """Nodes with a directory. What gives out first comes first."""
    return _lines([*_of_directory(costs, load), *_of_nodes(load)], nodes)


def model_of_list(costs: Costs, load: Load, nodes: int) -> list[Line]:
    """The same nodes with a static list of each other, and no directory."""
    return _lines([*_of_list(costs, load), *_of_nodes(load)], nodes)


def _lines(uses: Sequence[tuple[str, Use, float, str]], nodes: int) -> list[Line]:
    lines = [Line(what, use(nodes), limit, unit, breaks_at(use, limit)) for what, use, limit, unit in uses]
    return sorted(lines, key=lambda line: line.breaks_at or math.inf)


def breaks_at(use: Use, limit: float) -> int | None:
    """The smallest number of nodes that use more than there is; `use` grows with it."""
    if use(NODES_MAX) <= limit:
        return None
    low, high = 0, NODES_MAX
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if use(middle) > limit else (middle, high)
    return high


def told_per_second(load: Load) -> float:
    """Keys that one node announces or withdraws: what comes, what leaves, and all of it again now and then."""
    return 2 * load.published_per_second + load.held / RETELL_SECONDS


def _of_directory(costs: Costs, load: Load) -> list[tuple[str, Use, float, str]]:
    told = told_per_second(load)
    node_cpu = told * costs.announce_cpu + load.lookups_per_second * costs.lookup_cpu
    node_bytes = told * costs.announce_bytes + load.lookups_per_second * costs.lookup_bytes

    def keys_cpu(nodes: float) -> float:
        """Of one server; keys and look-ups spread over a Cluster, records of nodes do not."""
        return nodes * node_cpu / load.servers + records_cpu(nodes)

    def records_cpu(nodes: float) -> float:
        return nodes * (
            load.beats_per_second * costs.beat_cpu + load.readings_per_second * (nodes - 1) * costs.record_cpu
        )

    def traffic(nodes: float) -> float:
        records = load.beats_per_second * costs.beat_bytes + load.readings_per_second * (nodes - 1) * costs.record_bytes
        return nodes * (node_bytes / load.servers + records)

    return [
        ("directory: CPU of its busiest server", keys_cpu, 1.0, "cores"),
        ("directory: of that, heartbeats and records of nodes", records_cpu, 1.0, "cores"),
        ("directory: network of its busiest server", traffic, NETWORK_BYTES_A_SECOND, "bytes/s"),
        (
            "directory: memory of one server",
            lambda nodes: nodes * load.held * costs.key_memory / load.servers,
            SERVER_BYTES,
            "bytes",
        ),
        ("directory: connections of one server", lambda nodes: nodes * costs.connections_per_node, CLIENTS_MAX, ""),
    ]


def _of_nodes(load: Load) -> list[tuple[str, Use, float, str]]:
    return [
        ("node: links from others, if all ask it", lambda nodes: nodes - 1, LINKS_MAX, ""),
        (
            "node: sockets, if all ask all and none idles",
            lambda nodes: 2 * (nodes - 1) * (1 + load.connections),
            FILES_MAX,
            "",
        ),
    ]


def _of_list(costs: Costs, load: Load) -> list[tuple[str, Use, float, str]]:
    asked = load.lookups_per_second * costs.have_cpu
    return [
        ("node: CPU for the others' questions", lambda nodes: (nodes - 1) * asked, STATIC_LOOKUPS_SHARE, "cores"),
    ]
