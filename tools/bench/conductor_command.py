"""`mooncask bench conductor`: what the Conductor costs a request."""

import json
from dataclasses import asdict

from rich.table import Table

from mooncask.tools.bench.conductor_run import FULL, QUICK, WORKERS, Point, load_average, measure
from mooncask.tools.bench.options import JsonFile, Quick
from mooncask.tools.output import console, stages

TARGETS_MS = {8192: 3.0, 131072: 5.0}


def conductor(
    json_file: JsonFile = None,
    quick: Quick = False,
) -> None:
    """Measure from parsed token ids to a placement that is sent, in front of 8 scripted workers, at 50 requests a second.

    Then as many as go, to see what a request costs of one core. Half a minute; no model, no daemon.
    """
    load = QUICK if quick else FULL
    with stages() as progress:
        points = measure(load, progress)
    screen = console()
    screen.print(_table(points))
    screen.print(
        f"{WORKERS} workers, {load.rate:g} requests/s; load average {load_average():.1f}."
        " Latency: from parsed ids until the worker has the head of its call; the rest is CPU time.",
        highlight=False,
    )
    if json_file is not None:
        found = {
            "rate": load.rate,
            "workers": WORKERS,
            "load_average": load_average(),
            "points": list(map(asdict, points)),
        }
        json_file.write_text(json.dumps(found, indent=2) + "\n")


def _table(points: list[Point]) -> Table:
    table = Table()
    for heading in (
        "tokens", "p50 ms", "target", "p90 ms", "CPU ms a request", "placements/s a core", "of it keys ms", "call ms",
        "parsed before ms", "or tokenised ms",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for point in points:
        placed = f"{point.placements_per_cpu_second:.0f}"
        times = (point.p90_ms, point.cpu_ms)
        parts = (point.hash_ms, point.encode_ms, point.parse_ms)
        wanted = TARGETS_MS.get(point.tokens)
        table.add_row(
            f"{point.tokens:,}", f"{point.p50_ms:.2f}", f"{wanted:g}" if wanted else "", *(f"{t:.2f}" for t in times), placed,
            *(f"{part:.2f}" for part in parts), f"{point.tokenise_ms:.0f}" if point.tokenise_ms else "-",
        )  # fmt: skip
    return table
