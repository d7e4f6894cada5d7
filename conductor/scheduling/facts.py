"""What the policies are told and what they answer: plain values, made by the live Conductor and the simulator alike.

Units: tokens, seconds. A node is named by its index among the nodes offered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class PrefillCosts(Protocol):
    """What placement may ask: three estimates, all without side effects."""

    def prefill_seconds(self, tokens: int, prefix: int) -> float:
        """From start to first token."""
        ...

    def occupied_seconds(self, tokens: int, prefix: int) -> float:
        """How long the request keeps a node from starting the next; less than the above where nodes are pipelined."""
        ...

    def fetch_seconds(self, source: int, target: int, tokens: int) -> float:
        """Until `tokens` tokens of KV that `source` holds are on `target`, waiting for links included."""
        ...


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """What one node's cache has of a request: `local_tokens` when it gets to it, `offered_tokens` for others now."""

    local_tokens: int
    offered_tokens: int


@dataclass(frozen=True, slots=True)
class PrefillFacts:
    """One prefill node (or pipelined group) as it stands when a request arrives."""

    queue_seconds: float
    """Until the node has done what is already placed on it."""
    prefix_tokens: int
    """Longest prefix of the request whose KV the node holds, or will have computed by the time it gets there."""
    offered_tokens: int = 0
    """Longest prefix that is there now, so that others can fetch it."""
    waiting: int = 0
    """Requests placed and not finished."""
    slowness: float = 1.0
    """What its prefills take against the pool's model."""
    shared_tokens: int = 0
    """Longest prefix that its store brings from other nodes by itself when the request's turn comes, whatever is decided."""
    shared_seconds: float = 0.0
    """What bringing that takes."""


@dataclass(frozen=True, slots=True)
class PrefillChoice:
    """Where a request is prefilled, and how much of its prefix comes from where."""

    node: int
    prefix_tokens: int
    """What need not be computed, local and fetched together."""
    fetch_from: int | None
    fetch_tokens: int
    ttft_seconds: float
    """Estimate from now to the first token."""


@dataclass(frozen=True, slots=True)
class DecodeFacts:
    """One decode node; what is promised to it but still prefilling is counted apart."""

    requests: int
    context_tokens: int
    capacity_tokens: int
    coming_requests: int = 0
    coming_tokens: int = 0


@dataclass(frozen=True, slots=True)
class DecodeChoice:
    node: int
    tbt_seconds: float


class Reason(StrEnum):
    """Why a request was rejected."""

    TTFT = "predicted TTFT over its SLO"
    TBT = "predicted TBT over its SLO"
    TBT_AFTER_PREFILL = "TBT over its SLO after the prefill"
    VRAM = "no decode node has room"


@dataclass(frozen=True, slots=True)
class Slo:
    """Service level objectives in seconds."""

    ttft_seconds: float
    tbt_seconds: float


@dataclass(frozen=True, slots=True)
class Decoding:
    """A request that decodes or will: when it starts (seconds), and its tokens of context."""

    start_seconds: float
    context_tokens: int


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """What admission is told about one request and the pools.

    `ttft_seconds` is the best prediction for this request; `tbt_seconds` the decode pool's predicted step with it, None
    when no node has room. `decoding` and `coming` are asked for only by those policies that predict.
    """

    now_seconds: float
    ttft_seconds: float
    tbt_seconds: float | None
    context_tokens: int
    priority: int = 0
    decode_nodes: int = 1
    decode_seconds: float | None = None
    """How long requests decoded lately; None while nobody knows."""
    decoding: Sequence[Decoding] = field(default=())
    coming: Sequence[Decoding] = field(default=())
