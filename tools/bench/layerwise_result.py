"""What `mooncask bench layerwise` measures, what it found, and how that is shown and judged. Plain data; needs no model."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from rich.table import Table

from mooncask.tools.bench.result import Fact

FULL_SHARE = 1.0
RATIO_MAX = 0.2
"""Of the serial time may be seen for the longest prompt, by a tier that takes all that is produced."""
GROWTH_MAX = 2.0
"""How much more of it may be seen for the longest prompt than for the shortest: constant but for noise."""
FLOOR_SECONDS = 0.05
"""Below this a growth is noise."""


@dataclass(frozen=True, slots=True)
class LayerwisePlan:
    """Each length is measured `repeats` times by the tier that takes all, and once by slower ones."""

    tokens: tuple[int, ...] = (512, 1024, 2048, 4096)
    shares: tuple[float, ...] = (FULL_SHARE, 0.5, 0.25)
    repeats: int = 3
    block_tokens: int = 16
    prefill_chunk: int = 256
    dram_bytes: int = 1 << 30
    judged: bool = True


FULL = LayerwisePlan()
QUICK = LayerwisePlan((64, 128), repeats=2, dram_bytes=128 << 20, prefill_chunk=32, judged=False)


@dataclass(frozen=True, slots=True)
class Layered:
    """One prefill whose layers were stored while it computed.

    `alone_seconds`: of its thread, for the prefill without storing, just before. `compute_seconds`: this one, without what
    storing took from its thread, which is: `calling_seconds` in calls of the store, and when all was computed `tier_seconds`
    until the tier had let everything through and `behind_seconds` until it was copied and published.
    """

    alone_seconds: float
    compute_seconds: float
    calling_seconds: float
    tier_seconds: float
    behind_seconds: float

    @property
    def visible_seconds(self) -> float:
        return self.calling_seconds + self.tier_seconds + self.behind_seconds

    @property
    def slowed_seconds(self) -> float:
        """How much longer than alone it computed: the store's copies, and whatever else had the cores."""
        return self.compute_seconds - self.alone_seconds


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt length with a tier that takes `share` of the KV that prefill produces a second; figures are medians.

    `serial_seconds`: storing everything when it is computed: the tier's time for these bytes, and what copying adds, which was
    measured once.
    """

    tokens: int
    share: float
    kv_bytes: int
    serial_seconds: float
    runs: tuple[Layered, ...]

    def median(self, figure: Callable[[Layered], float]) -> float:
        return median(figure(run) for run in self.runs)

    @property
    def visible_seconds(self) -> float:
        return self.median(lambda run: run.visible_seconds)

    @property
    def ratio(self) -> float:
        return self.visible_seconds / self.serial_seconds

    @property
    def added_seconds(self) -> float:
        """Visible, less what a tier that is slower than the prefill must take after it, whoever does the storing."""
        return self.median(lambda run: run.visible_seconds - run.alone_seconds * (1 / self.share - 1))

    def as_json(self) -> dict[str, object]:
        medians = {"visible_seconds": self.visible_seconds, "visible_of_serial": self.ratio}
        return {**asdict(self), **medians, "added_seconds": self.added_seconds}


COLUMNS: dict[str, Callable[[Row], str]] = {
    "tokens": lambda row: f"{row.tokens:,}",
    "tier": lambda row: f"{row.share:.0%}",
    "runs": lambda row: str(len(row.runs)),
    "alone s": lambda row: f"{row.median(lambda run: run.alone_seconds):.2f}",
    "slowed s": lambda row: f"{row.median(lambda run: run.slowed_seconds):.2f}",
    "serial s": lambda row: f"{row.serial_seconds:.2f}",
    "calls s": lambda row: f"{row.median(lambda run: run.calling_seconds):.3f}",
    "tier s": lambda row: f"{row.median(lambda run: run.tier_seconds):.3f}",
    "behind s": lambda row: f"{row.median(lambda run: run.behind_seconds):.3f}",
    "visible s": lambda row: f"{row.visible_seconds:.3f}",
    "added s": lambda row: f"{row.added_seconds:.3f}",
    "visible ÷ serial": lambda row: f"{row.ratio:.3f}",
}


def table(rows: Sequence[Row]) -> Table:
    found = Table(title="Storing while computing", title_justify="left")
    for heading in COLUMNS:
        found.add_column(heading, justify="right")
    for row in rows:
        found.add_row(*(cell(row) for cell in COLUMNS.values()))
    return found


def facts(rows: Sequence[Row], judged: bool) -> list[Fact]:
    """What the run is held against: the tier that takes all that is produced."""
    at_full = sorted((row for row in rows if row.share == FULL_SHARE), key=lambda row: row.tokens)
    if not judged or len(at_full) < 2:
        return []
    shortest, longest = at_full[0], at_full[-1]
    growth = longest.visible_seconds / max(shortest.visible_seconds, FLOOR_SECONDS)
    return [
        Fact(
            f"visible ÷ serial, {longest.tokens} tokens",
            longest.ratio,
            "",
            f"at most {RATIO_MAX}",
            longest.ratio <= RATIO_MAX,
        ),
        Fact(
            f"visible, {longest.tokens} ÷ {shortest.tokens} tokens",
            growth,
            "times",
            f"at most {GROWTH_MAX}",
            growth <= GROWTH_MAX,
        ),
    ]
