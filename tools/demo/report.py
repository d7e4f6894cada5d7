"""The demo's table for people and its JSON for programs."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from mooncask.tools.demo.verdict import (
    LONG_PROMPT_TOKENS,
    SPEEDUP_EXPECTED,
    TIE_GAP,
    Comparison,
    Control,
    Phase,
    Row,
    Verdict,
)


def document(rows: Sequence[Row], control: Control, verdict: Verdict) -> dict[str, Any]:
    """What build/demo.json holds; tokens_identical is false for a tie, which `tie` tells apart."""
    return {
        "requests": [_entry(row) for row in rows],
        "negative_control": {
            "copied_tokens_identical": control.copied is Comparison.IDENTICAL,
            "flipped_tokens_differ": control.flipped is Comparison.DIFFERENT,
            "loaded": control.flipped_loaded,
        },
        "ties": verdict.ties,
        "full_hit_speedup": verdict.full_hit_speedup,
        "problems": list(verdict.problems),
        "ok": verdict.ok,
    }


def _entry(row: Row) -> dict[str, Any]:
    return {
        "phase": row.phase.value,
        "name": row.name,
        "prompt_tokens": row.prompt_tokens,
        "loaded": {"dram": row.loaded_dram, "nvme": row.loaded_nvme},
        "computed": {"prefill": row.computed_by_prefill, "decode": row.computed_by_decode},
        "ttft_cold_s": round(row.ttft_cold_s, 4),
        "ttft_s": round(row.ttft_s, 4),
        "speedup": round(row.speedup, 2),
        "tokens_identical": row.comparison is Comparison.IDENTICAL,
        "tie": row.comparison is Comparison.TIE,
        "decision": row.reason,
        "store_faults": row.faults,
    }


def print_report(console: Console, rows: Sequence[Row], control: Control, verdict: Verdict) -> None:
    for phase in Phase:
        console.print(_table(phase, [row for row in rows if row.phase is phase]))
    flipped = "other tokens, as it must" if control.ok else control.flipped.value
    console.print(f"Negative control, one block's signs flipped: {flipped}; unchanged copies: {control.copied.value}")
    if verdict.ties:
        console.print(f"Ties (best two logits of the reference within {TIE_GAP}): {verdict.ties}")
    if verdict.full_hit_speedup is not None:
        console.print(
            f"Full hits of {LONG_PROMPT_TOKENS} tokens and more: time to first token {verdict.full_hit_speedup:.1f} "
            f"times shorter in the median (expected: {SPEEDUP_EXPECTED:.0f})"
        )
    for problem in verdict.problems:
        console.print(f"[red]Problem:[/red] {problem}")
    console.print("[green]ok[/green]" if verdict.ok else "[red]not ok[/red]")


def _table(phase: Phase, rows: Sequence[Row]) -> Table:
    table = Table(title=phase.value, title_justify="left")
    table.add_column("request")
    for heading in ("prompt", "from DRAM", "from NVMe", "computed", "TTFT cold", "TTFT", "speed-up"):
        table.add_column(heading, justify="right")
    table.add_column("tokens")
    for row in rows:
        table.add_row(
            row.name,
            str(row.prompt_tokens),
            str(row.loaded_dram),
            str(row.loaded_nvme),
            str(row.computed_by_prefill + row.computed_by_decode),
            f"{row.ttft_cold_s:.2f} s",
            f"{row.ttft_s:.2f} s",
            f"{row.speedup:.1f} x",
            row.comparison.value,
        )
    return table
