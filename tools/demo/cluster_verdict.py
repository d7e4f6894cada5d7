"""What a run of the cluster demo has to show, decided from its measurements. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from mooncask.tools.demo.verdict import Comparison


class Source(StrEnum):
    """Where most of a prompt's KV came from."""

    COLD = "computed"
    LOCAL = "local"
    REMOTE = "remote"


class Phase(StrEnum):
    ALL_UP = "three nodes"
    WHILE_KILLED = "while n1 is killed"
    AFTER_KILL = "after the kill"


@dataclass(frozen=True, slots=True)
class Row:
    """One answer of a node beside the same prompt's answer without a store. Tokens are prompt tokens, durations seconds.

    `ttft_s` is of the answering worker alone: what prefill took on another node before it is not in it.
    """

    phase: Phase
    name: str
    node: str
    prompt_tokens: int
    local: int
    remote: int
    computed: int
    ttft_cold_s: float
    ttft_s: float
    comparison: Comparison
    faults: int

    @property
    def source(self) -> Source:
        if not self.local + self.remote:
            return Source.COLD
        return Source.REMOTE if self.remote > self.local else Source.LOCAL


@dataclass(frozen=True, slots=True)
class Verdict:
    problems: tuple[str, ...]
    ttft_s: Mapping[str, float]
    """Median time to first token by source, "computed" being the runs without a store."""

    @property
    def ok(self) -> bool:
        return not self.problems


def judge(rows: Sequence[Row], cold: Iterable[float], moved: Mapping[str, int]) -> Verdict:
    """`cold`: times to first token without a store; `moved`: bytes received by transport, all nodes together."""
    problems = [
        f"{row.phase}, {row.name} on {row.node}: tokens differ from the run without a store"
        for row in rows
        if row.comparison is Comparison.DIFFERENT
    ]
    for node in ("n2", "n3"):
        if not any(row.node == node and row.remote for row in rows):
            problems.append(f"{node} got nothing from another node")
    if not any(row.source is Source.LOCAL for row in rows if row.phase is Phase.ALL_UP):
        problems.append("no prompt was answered from what its node had itself")
    if not any(row.local + row.remote for row in rows if row.phase is Phase.AFTER_KILL):
        problems.append("nothing was reused after the kill")
    if not sum(moved.values()):
        problems.append("no bytes moved between nodes")
    by_source = {Source.COLD: list(cold)} | {
        source: [row.ttft_s for row in rows if row.source is source and row.phase is Phase.ALL_UP]
        for source in (Source.LOCAL, Source.REMOTE)
    }
    return Verdict(tuple(problems), {source.value: median(found) for source, found in by_source.items() if found})
