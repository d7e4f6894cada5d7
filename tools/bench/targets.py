"""The targets of the reference machine (2 cores, 24 GiB, no GPU), each judged where it is measured. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mooncask.tools.bench.result import Fact, Measure

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class AtMost:
    """An upper bound on a measure's p50 in µs or on a fact's value; `block_bytes` 0 means any size."""

    value: float
    block_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ShareOfLimit:
    """A lower bound on the share of a limit's speed."""

    ratio: float


GET_IN_PLACE = "get in place"
GET_COPY = "get into a private buffer"
PUT = "put"
MATCH = "match of 256 blocks"
NVME_PUT = "NVMe put, durable"
NVME_GET = "NVMe get"
MEMORY_EMPTY = "daemon memory beside the arena, empty"
MEMORY_FULL = "daemon memory beside the arena, many blocks in DRAM and on NVMe"
MEMORY_NVME = "daemon memory beside the arena, many blocks on NVMe"
START_EMPTY = "start to ready, empty"
START_FULL = "start to ready, many blocks on NVMe"
WHILE_STREAMING = "get in place p99 while HTTP streams"

TARGETS: dict[str, AtMost | ShareOfLimit] = {
    GET_IN_PLACE: AtMost(150, 2 * MIB),
    GET_COPY: ShareOfLimit(0.85),
    PUT: ShareOfLimit(0.6),
    MATCH: AtMost(300),
    NVME_PUT: ShareOfLimit(0.8),
    NVME_GET: ShareOfLimit(0.85),
    MEMORY_EMPTY: AtMost(100),
    MEMORY_FULL: AtMost(130),
    MEMORY_NVME: AtMost(130),
    START_EMPTY: AtMost(1.0),
    START_FULL: AtMost(3.0),
    WHILE_STREAMING: AtMost(5.0),
}


def judge_measure(measure: Measure, targets: Mapping[str, AtMost | ShareOfLimit] = TARGETS) -> Measure:
    """`measure` with its target and whether it was met; as it is where there is none."""
    match targets.get(measure.name):
        case AtMost(value, block_bytes) if block_bytes in (0, measure.block_bytes):
            return replace(measure, target=f"p50 ≤ {value:g} µs", met=measure.p50_us <= value)
        case ShareOfLimit(ratio) if measure.ratio is not None:
            return replace(measure, target=f"≥ {ratio:g} of {measure.limit}", met=measure.ratio >= ratio)
    return measure


def judge_fact(fact: Fact) -> Fact:
    match TARGETS.get(fact.name):
        case AtMost(value):
            return replace(fact, target=f"≤ {value:g} {fact.unit}", met=fact.value <= value)
    return fact
