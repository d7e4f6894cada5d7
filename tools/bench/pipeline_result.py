"""What `mooncask bench pipeline` measures and how that is shown. Plain data; needs no model."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from rich.table import Table

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Prompts of `tokens` tokens, each prefilled by 1, 2, ... processes one after the other, `repeats` times."""

    tokens: int = 4096
    stages: tuple[int, ...] = (1, 2)
    repeats: int = 5
    block_tokens: int = 16
    prefill_chunk: int = 256


FULL = PipelinePlan()
QUICK = PipelinePlan(tokens=256, repeats=1, prefill_chunk=64)


@dataclass(frozen=True, slots=True)
class Run:
    """One prefill: seconds until all is stored, and each process's CPU seconds chunk by chunk and own memory, in bytes."""

    seconds: float
    cpu_seconds: list[list[float]]
    own_bytes: list[int]

    @property
    def with_cores_seconds(self) -> float:
        """How long it takes by its CPU seconds if each process has a core: a chunk begins in a process when that is done with the
        chunk before and the process before is done with this one."""
        done = [0.0] * len(self.cpu_seconds[0])
        for stage in self.cpu_seconds:
            at = 0.0
            for chunk, seconds in enumerate(stage):
                at = done[chunk] = max(done[chunk], at) + seconds
        return done[-1]


@dataclass(frozen=True, slots=True)
class Row:
    """All runs by `stages` processes. `weight_bytes`: of each. `equal`: every block was that of one process, to the bit."""

    stages: int
    tokens: int
    runs: list[Run]
    weight_bytes: list[int]
    equal: bool

    @property
    def seconds(self) -> float:
        return median(run.seconds for run in self.runs)

    @property
    def spread(self) -> tuple[float, float]:
        return min(run.seconds for run in self.runs), max(run.seconds for run in self.runs)

    @property
    def cpu_seconds(self) -> list[float]:
        """Each process's median."""
        return [median(map(sum, each)) for each in zip(*(run.cpu_seconds for run in self.runs), strict=True)]

    @property
    def with_cores_seconds(self) -> float:
        return median(run.with_cores_seconds for run in self.runs)

    @property
    def own_bytes(self) -> list[int]:
        return [max(each) for each in zip(*(run.own_bytes for run in self.runs), strict=True)]

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "median_seconds": self.seconds, "with_cores_seconds": self.with_cores_seconds}


def table(rows: Sequence[Row]) -> Table:
    found = Table(title="Prefill through a pipeline", title_justify="left")
    headings = (
        "processes",
        "tokens",
        "TTFT s",
        "range s",
        "÷ one",
        "busy s",
        "weights MiB",
        "own memory MiB",
        "blocks",
    )
    for heading in headings:
        found.add_column(heading, justify="right")
    for row in rows:
        low, high = row.spread
        found.add_row(
            str(row.stages),
            f"{row.tokens:,}",
            f"{row.seconds:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{row.seconds / rows[0].seconds:.2f}",
            " + ".join(f"{seconds:.2f}" for seconds in row.cpu_seconds),
            f"{row.with_cores_seconds:.2f}",
            " + ".join(f"{size / MIB:.0f}" for size in row.weight_bytes),
            " + ".join(f"{size / MIB:.0f}" for size in row.own_bytes),
            "equal" if row.equal else "DIFFER",
        )
    return found
