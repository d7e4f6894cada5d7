"""Findings as tables for people and as one JSON document; and what machine they are from."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mooncask.tools.bench.result import Fact, Findings, Measure


def machine() -> dict[str, str | int]:
    """What figures depend on: processor, cores, memory, kernel, Python."""
    return {
        "processor": _first_value(Path("/proc/cpuinfo"), "model name"),
        "cores": os.cpu_count() or 0,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def document(findings: Findings, command: str, version: str) -> dict[str, object]:
    """The whole JSON document."""
    return {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": version,
        "machine": machine(),
        **findings.as_json(),
    }


def print_findings(console: Console, findings: Findings) -> None:
    for block_bytes in sorted({measure.block_bytes for measure in findings.measures}):
        same = [measure for measure in findings.measures if measure.block_bytes == block_bytes]
        console.print(_measures_table(_title(block_bytes, same[0].batch), same))
    if findings.facts:
        console.print(_facts_table(findings.facts))
    for skipped in findings.skipped:
        console.print(f"skipped: {skipped.what}: {skipped.why}")
    judged, missed = len(findings.judged), len(findings.missed)
    if judged:
        console.print(f"{judged - missed} of {judged} targets met")


def _measures_table(title: str, measures: list[Measure]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("system")
    table.add_column("action")
    for heading in ("p50 µs", "p99 µs", "cold µs", "GB/s", "share of limit"):
        table.add_column(heading, justify="right")
    table.add_column("limit")
    table.add_column("target")
    for measure in measures:
        table.add_row(
            measure.system,
            measure.name,
            _figure(measure.p50_us),
            _figure(measure.p99_us),
            _figure(measure.cold_us),
            f"{measure.gb_per_second:.2f}" if measure.gb_per_second is not None else "",
            f"{measure.ratio:.2f}" if measure.ratio is not None else "",
            measure.limit,
            _verdict(measure),
        )
    return table


def _facts_table(facts: list[Fact]) -> Table:
    table = Table(title="Process", title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_column("target")
    for fact in facts:
        table.add_row(fact.name, f"{fact.value:.3g} {fact.unit}", _verdict(fact))
    return table


def _title(block_bytes: int, batch: int) -> str:
    if block_bytes == 0:
        return "Calls"
    size = f"{block_bytes >> 20} MiB" if block_bytes >= 1 << 20 else f"{block_bytes >> 10} KiB"
    return f"{batch} blocks of {size}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _verdict(item: Measure | Fact) -> str:
    if item.met is None:
        return item.target
    return f"{item.target}: met" if item.met else f"[bold red]{item.target}: MISSED[/]"


def _first_value(path: Path, key: str) -> str:
    """The value after "key :" in a file of /proc; the machine's name for its kind where there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), platform.machine())
