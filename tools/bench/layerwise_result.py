"""What `mooncask bench layerwise` measures, what it found, and how that is shown and judged. Plain data; needs no model."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

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
    tokens: tuple[int, ...] = (512, 1024, 2048, 4096)
    shares: tuple[float, ...] = (0.25, 0.5, FULL_SHARE)
    block_tokens: int = 16
    prefill_chunk: int = 256
    dram_bytes: int = 1 << 30
    judged: bool = True


FULL = LayerwisePlan()
QUICK = LayerwisePlan((64, 128), dram_bytes=128 << 20, prefill_chunk=32, judged=False)


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt length with a tier that takes `share` of the KV that prefill produces a second.

    `alone_seconds`: the prefill without storing, from which the rate is. `compute_seconds`: what it took to compute while layers
    were stored; `visible_seconds`: what storing added to that; `serial_seconds`: storing everything afterwards.
    """

    tokens: int
    share: float
    kv_bytes: int
    rate_bytes: float
    alone_seconds: float
    compute_seconds: float
    visible_seconds: float
    serial_seconds: float

    @property
    def ratio(self) -> float:
        return self.visible_seconds / self.serial_seconds

    @property
    def unavoidable_seconds(self) -> float:
        """What must be seen of a tier that took longer than this run computed: also at 100 %, where the machine was busier
        while the speed was measured than while layers were stored."""
        return max(0.0, self.kv_bytes / self.rate_bytes - self.compute_seconds)

    def as_json(self) -> dict[str, float]:
        return {**asdict(self), "visible_of_serial": self.ratio, "unavoidable_seconds": self.unavoidable_seconds}


def table(rows: Sequence[Row]) -> Table:
    found = Table(title="Storing while computing", title_justify="left")
    for heading in (
        "tokens",
        "tier",
        "KV MB",
        "alone s",
        "compute s",
        "serial s",
        "visible s",
        "unavoidable s",
        "visible ÷ serial",
    ):
        found.add_column(heading, justify="right")
    for row in rows:
        found.add_row(
            f"{row.tokens:,}",
            f"{row.share:.0%}",
            f"{row.kv_bytes / 1e6:.1f}",
            f"{row.alone_seconds:.2f}",
            f"{row.compute_seconds:.2f}",
            f"{row.serial_seconds:.2f}",
            f"{row.visible_seconds:.3f}",
            f"{row.unavoidable_seconds:.3f}",
            f"{row.ratio:.2f}",
        )
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
