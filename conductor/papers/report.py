"""How a figure is told: ours beside the published value, the ratio, and an honest word; a plot where it is one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mooncask.conductor.traces.request import Request


@dataclass(frozen=True, slots=True)
class Line:
    """One number. `published` is None where the papers give none."""

    what: str
    ours: float
    published: float | None = None
    word: str = ""

    @property
    def ratio(self) -> float | None:
        return self.ours / self.published if self.published else None


@dataclass(frozen=True, slots=True)
class Curve:
    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves over one pair of axes; `name` becomes the file's."""

    name: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure or table. `setting` says on what it ran; `reason`, if any, what of it can't be reproduced here and why."""

    name: str
    title: str
    setting: str
    lines: Sequence[Line] = ()
    plots: Sequence[Plot] = ()
    verdict: str = ""
    reason: str = ""


class Inputs(Protocol):
    """The traces there are."""

    def conversation(self) -> Sequence[Request]:
        """The public trace; raises BadArgument when this machine does not have it."""
        ...

    def synthetic(self) -> Sequence[Request] | None:
        """The synthetic trace of the FAST'25 release, where it is given."""
        ...


Make = Callable[[Inputs], Figure]


def number(value: float | None) -> str:
    """Four significant digits; "-" for nothing."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def as_markdown(figure: Figure, seconds: float) -> str:
    """One section of the page."""
    rows = [f"## {figure.name}: {figure.title}", "", f"{figure.setting} ({seconds:.1f} s)", ""]
    if figure.reason:
        rows += [f"**What is missing.** {figure.reason}", ""]
    if figure.lines:
        rows += ["| | ours | published | ratio | |", "|---|---|---|---|---|"]
        rows += [
            f"| {line.what} | {number(line.ours)} | {number(line.published)} | {number(line.ratio)} | {line.word} |"
            for line in figure.lines
        ]
        rows.append("")
    if figure.verdict:
        rows += [figure.verdict, ""]
    rows += [f"![{plot.name}]({plot.name}.png)\n" for plot in figure.plots]
    return "\n".join(rows)
