"""Plots as PNG files, with matplotlib (the optional extra `papers`), which is imported only here.

A curve is a name with x and y values. Without matplotlib the caller gets a BadArgument that says what to install.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from mooncask.conductor.simulator.outcome import Simulation
from mooncask.errors import BadArgument


class Drawable(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def x(self) -> Sequence[float]: ...
    @property
    def y(self) -> Sequence[float]: ...


def require_matplotlib() -> None:
    """Raises BadArgument where matplotlib is missing; call it before long work."""
    _figure_class()


def prepare_folder(folder: Path, option: str) -> None:
    """Make the folder for results before the work whose results it takes; raises BadArgument if that can't be."""
    require_matplotlib()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise BadArgument(option, str(folder), f"a folder that can be made: {exc.strerror}") from exc


def draw(path: Path, curves: Sequence[Drawable], x_label: str, y_label: str, *, logarithmic: bool = False) -> None:
    """Write one plot of lines; a failure leaves no file."""
    figure = _figure_class()(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for curve in curves:
        marker = "o" if len(curve.x) <= 20 else None
        axes.plot(curve.x, curve.y, label=curve.name, marker=marker, markersize=4, linewidth=1.2)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if logarithmic:
        axes.set_xscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    _save(figure, path)


def draw_simulation(folder: Path, result: Simulation) -> list[Path]:
    """CDFs of TTFT and TBT, load over time, replicas of hot keys, rejected requests by reason; returns the files. `folder` exists."""
    figures = {"ttft": _cdf(result, "ttft", "TTFT s"), "tbt": _cdf(result, f"tbt_{_metric(result)}", "TBT s")}
    figures |= {"load": _load(result), "replicas": _replicas(result), "rejected": _rejected(result)}
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        _save(figure, paths[-1])
    return paths


def _metric(result: Simulation) -> str:
    return "p90" if result.tbt_metric == "p90" else "longest_tenth"


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise BadArgument(
            "plots", "on", 'matplotlib is missing; install it with pip install "mooncask[papers]"'
        ) from exc
    return Figure


def _axes(x_label: str, y_label: str) -> tuple[Any, Any]:
    figure = _figure_class()(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    return figure, axes


def _cdf(result: Simulation, field: str, label: str) -> Any:
    figure, axes = _axes(label, "share of completed requests")
    values = sorted(float(getattr(outcome, field)) for outcome in result.completed)
    axes.plot(values, [(i + 1) / len(values) for i in range(len(values))])
    return figure


def _load(result: Simulation) -> Any:
    figure, axes = _axes("seconds", "predicted latency / SLO")
    times = [sample.time for sample in result.load]
    axes.plot(times, [sample.prefill for sample in result.load], label="prefill", linewidth=1)
    axes.plot(times, [sample.decode for sample in result.load], label="decode", linewidth=1)
    axes.legend()
    return figure


def _replicas(result: Simulation) -> Any:
    figure, axes = _axes("seconds", "nodes with a copy")
    times = [sample.time for sample in result.replicas]
    for i, rank in enumerate(result.replica_ranks):
        axes.plot(times, [sample.replicas[i] for sample in result.replicas], label=f"rank {rank}", linewidth=1)
    axes.legend(fontsize="small")
    return figure


def _rejected(result: Simulation) -> Any:
    figure, axes = _axes("requests", "")
    reasons = result.rejected() or {"none rejected": 0}
    axes.barh(list(reasons), list(reasons.values()))
    return figure


def _save(figure: Any, path: Path) -> None:
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        figure.savefig(unfinished, format="png", dpi=110)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
