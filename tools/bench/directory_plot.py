"""The growth of look-up time with entries and the model's lines over nodes, as a picture; only where matplotlib is installed."""

from collections.abc import Sequence
from pathlib import Path

from mooncask.errors import ConfigError
from mooncask.tools.bench.directory_run import Point


def plot_growth(points: Sequence[Point], file: Path) -> None:
    """Raises ConfigError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--plot", str(file), 'needs matplotlib: "pip install mooncask[papers]"') from error
    figure = Figure(figsize=(9, 4), layout="constrained")
    times, sizes = figure.subplots(1, 2)
    for servers in sorted({point.servers for point in points}):
        same = [point for point in points if point.servers == servers]
        label = "one server" if servers == 1 else f"Cluster of {servers}"
        entries = [point.entries for point in same]
        times.plot(entries, [point.lookup_p50_us / 1000 for point in same], "o-", label=f"{label}, p50")
        times.plot(entries, [point.lookup_p99_us / 1000 for point in same], "o:", label=f"{label}, p99")
        sizes.plot(entries, [point.key_bytes for point in same], "o-", label=label)
    for axes, what in ((times, "look-up of 256 keys, ms"), (sizes, "bytes a key")):
        axes.set_xscale("log")
        axes.set_xlabel("entries")
        axes.set_ylabel(what)
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.savefig(file)
