"""What scheduler and workers tell each other, each step. Plain values; vLLM carries them between processes.

Not here: vLLM's own classes around them (`connector.py`).
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """What a worker found out about its KV, before the first request."""

    family: dict[str, str]
    shard: str
    namespace: str
    block_bytes: int
    block_tokens: int


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Blocks to copy into the engine's cache: keys[i] goes to the blocks places[i], one a KV cache group."""

    request_id: str
    keys: list[bytes]
    places: list[tuple[int | None, ...]]
    tokens: dict[str, bytes]
    """By shard: adopts the leases of the first blocks."""
    wait: bool
    """Also wait for blocks that somebody is writing."""
    asked_seconds: float
    """How long the look-up took, in which blocks came into DRAM already."""
    tier: int
    """The slowest one that the blocks were in; 0 for a hand-over, which is waited for wherever it comes from."""
    layerwise: bool = False
    """The step that it is in computes the request: each layer waits for its own KV."""
    wait_seconds: float = 0.0
    """How long no block may come of what is still being computed; 0: all of it is there within the load's deadline."""


@dataclass(frozen=True, slots=True)
class SavePlan:
    """Blocks to copy out of the engine's cache, once this step has computed them."""

    request_id: str
    number: int
    keys: list[bytes]
    parents: list[bytes]
    first: int
    """Depth of the first block in its chain."""
    places: list[tuple[int | None, ...]]
    published_tokens: list[list[int]]
    """Each block's, for KV events; empty when they are not to be told."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the workers do in one step."""

    loads: list[LoadPlan] = field(default_factory=list)
    saves: list[SavePlan] = field(default_factory=list)
    preempted: frozenset[str] = frozenset()
    """Their blocks are somebody else's from this step on."""
    leaving: dict[str, int] = field(default_factory=dict)
    """Requests with saves under way, and the first block of each that sliding windows have not left behind: those before it
    may be somebody else's from this step on."""
    released: frozenset[str] = frozenset()
    """Finished requests whose blocks vLLM frees when a worker says that nothing reads them any more."""
    computes: bool = True
    """False: no request has tokens to compute in this step."""


@dataclass(frozen=True, slots=True)
class LoadDone:
    """How a load went: `blocks` from the first on are in the engine's cache."""

    request_id: str
    blocks: int
    wanted: int
    seconds: float
    bytes: int
    tier: int
    late: bool = False
    """It was given up at its deadline."""


@dataclass(slots=True)
class WorkerReport:
    """What workers did since the last step; those of several workers are added up."""

    saved: dict[int, int] = field(default_factory=dict)
    """By a save's number: the workers that are done with it, whether it worked or not."""
    loads: list[LoadDone] = field(default_factory=list)

    def add(self, other: "WorkerReport") -> None:
        for number, workers in other.saved.items():
            self.saved[number] = self.saved.get(number, 0) + workers
        self.loads.extend(other.loads)

    def __bool__(self) -> bool:
        return bool(self.saved or self.loads)
