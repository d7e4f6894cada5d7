"""What the bench found: measures, facts, what was skipped; and which targets were missed. Plain data, no I/O."""

from dataclasses import asdict, dataclass, field, replace

from mooncask.tools.bench.samples import Samples

LIMIT = "limit"
STORE = "mooncask"


@dataclass(frozen=True, slots=True)
class Measure:
    """One repeated action on batches of equal blocks.

    `ratio` is the share of its limit's speed that it reached: the limit's p50 divided by this one's, so 1.0 is as fast
    as the limit whatever the unit. `cold_us` is the first round, on memory, connections and caches not used before.
    """

    system: str
    name: str
    block_bytes: int
    batch: int
    rounds: int
    p50_us: float
    p99_us: float
    cold_us: float
    gb_per_second: float | None = None
    limit: str = ""
    ratio: float | None = None
    target: str = ""
    met: bool | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """One number that is not a repeated action, with its unit and target."""

    name: str
    value: float
    unit: str
    target: str = ""
    met: bool | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """What was not measured, and why."""

    what: str
    why: str


@dataclass(slots=True)
class Findings:
    """Everything one run found, in the order it was measured."""

    measures: list[Measure] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def judged(self) -> list[Measure | Fact]:
        """Those with a target."""
        found: list[Measure | Fact] = [*self.measures, *self.facts]
        return [item for item in found if item.met is not None]

    @property
    def missed(self) -> list[Measure | Fact]:
        return [item for item in self.judged if not item.met]

    def unjudged(self) -> "Findings":
        """The same without targets: figures of a run that is too small to be held against any."""
        return Findings(
            [replace(measure, target="", met=None) for measure in self.measures],
            [replace(fact, target="", met=None) for fact in self.facts],
            self.skipped,
        )

    def as_json(self) -> dict[str, object]:
        return {
            "measures": [asdict(measure) for measure in self.measures],
            "facts": [asdict(fact) for fact in self.facts],
            "skipped": [asdict(skipped) for skipped in self.skipped],
            "missed": [_label(item) for item in self.missed],
        }


def _label(item: Measure | Fact) -> str:
    return f"{item.name} {item.block_bytes}" if isinstance(item, Measure) and item.block_bytes else item.name


def measured(
    system: str, name: str, samples: Samples, block_bytes: int, batch: int, moves_bytes: bool = True
) -> Measure:
    """A measure from its rounds. Rates are bytes of a whole batch by the median round; `moves_bytes` false gives none."""
    return Measure(
        system=system,
        name=name,
        block_bytes=block_bytes,
        batch=batch,
        rounds=len(samples.seconds),
        p50_us=samples.p50_seconds * 1e6,
        p99_us=samples.p99_seconds * 1e6,
        cold_us=samples.cold_seconds * 1e6,
        gb_per_second=block_bytes * batch / samples.p50_seconds / 1e9 if moves_bytes else None,
    )


def beside(measure: Measure, limit: Measure) -> Measure:
    """`measure` with its share of `limit`'s speed."""
    return replace(measure, limit=limit.name, ratio=limit.p50_us / measure.p50_us)
