"""The serving demo's results as a table, as Markdown and as JSON."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import msgspec

from mooncask.tools.demo.serving.checking import Checked
from mooncask.tools.demo.serving.experiment import Results, Run
from mooncask.tools.demo.serving.reply import Spread, spreads
from mooncask.tools.demo.serving.variant import Variant

HEADINGS = (
    "placement", "admission", "pause", "TTFT mean", "TTFT P90", "TBT P90", "cached", "rejected early", "late", "failed",
    "accepted, then failed", "goodput", "TTFT simulated",
)  # fmt: skip


def rows(runs: Sequence[Run]) -> list[list[str]]:
    """A line a policy, in the order in which they were run: medians over the seeds with their range."""
    return [
        [one.placement, one.admission, _pauses(runs, one), *_cells(_of(runs, one)), _simulated(runs, one)]
        for one in variants(runs)
    ]


def variants(runs: Sequence[Run]) -> list[Variant]:
    return list(dict.fromkeys(run.variant for run in runs))


def markdown(results: Results, checked: Checked, directory: str) -> str:
    """The table with all that is needed to read it."""
    plan, capacity, levels = results.plan, results.capacity, results.levels
    lines = [
        "| " + " | ".join(HEADINGS) + " |",
        "|---" * len(HEADINGS) + "|",
        *("| " + " | ".join(row) + " |" for row in rows(results.runs)),
        "",
        (
            f"{plan.shape.chats} chats of {plan.shape.turns} turns about {plan.shape.documents} documents, seeds"
            f" {', '.join(map(str, plan.seeds))}; medians, ranges in brackets. Load: {plan.load:g} times the sustainable"
            f" {capacity.sustainable:.2f} requests/s. Alone: TTFT {capacity.ttft_alone:.2f} s without any KV, TBT"
            f" {capacity.tbt_alone:.3f} s; service levels {levels.ttft_seconds:.1f} s and {levels.tbt_seconds:.2f} s."
        ),
        (
            "TTFT from sending to the first text; TBT of a request is the P90 of its gaps. Goodput: answered within both levels"
            " / all planned turns."
        ),
        (
            f"Answers: {checked.answers}, of which {checked.distinct} distinct were held against transformers alone:"
            f" {checked.ties} with ties, {len(checked.different)} different. Directory: {directory}. Load average at the end:"
            f" {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
        ),
    ]
    return "\n".join(lines) + "\n"


def document(results: Results, checked: Checked | None, directory: str) -> dict[str, Any]:
    """What build/demo-serve.json holds; `checked` is None while the runs go on."""
    plan = results.plan
    return {
        "plan": {
            "chats": plan.shape.chats,
            "turns": plan.shape.turns,
            "documents": plan.shape.documents,
            "answer_tokens": plan.answer_tokens,
            "load": plan.load,
            "seeds": list(plan.seeds),
        },
        "directory": directory,
        "load_average": os.getloadavg()[0],
        "capacity": asdict(results.capacity),
        "levels": asdict(results.levels),
        "policies": [
            {
                **asdict(one),
                "figures": {name: asdict(s) for name, s in _of(results.runs, one).items()},
            }
            for one in variants(results.runs)
        ],
        "runs": [
            {
                **asdict(run.variant),
                "seed": run.seed,
                "figures": asdict(run.figures),
                "learned": asdict(run.constants),
                "pauses": msgspec.to_builtins(run.pauses),
                "simulated_ttft": run.compared.simulated if run.compared else None,
                "requests": [_request(reply) for reply in run.replies],
            }
            for run in results.runs
        ],
        "answers": asdict(checked) if checked else None,
    }


def _request(reply: Any) -> dict[str, Any]:
    return {
        "id": reply.request_id,
        "chat": reply.chat,
        "turn": reply.turn,
        "sent": round(reply.sent, 3),
        "outcome": reply.outcome.value,
        "message": reply.message,
        "ttft": round(reply.ttft, 4),
        "tbt_p90": round(reply.tbt_p90, 4) if reply.gaps else None,
        "prompt_tokens": len(reply.prompt_ids),
        "output_tokens": len(reply.answer_ids),
        "cached_tokens": reply.cached_tokens,
    }


def _of(runs: Sequence[Run], variant: Variant) -> dict[str, Spread]:
    return spreads([run.figures for run in runs if run.variant == variant])


def _pauses(runs: Sequence[Run], variant: Variant) -> str:
    """How often and how long, all seeds together."""
    if variant.pause == "never":
        return variant.pause
    told = [run.pauses for run in runs if run.variant == variant]
    return f"{variant.pause}: {sum(one.pauses for one in told)}, {sum(one.seconds for one in told):.1f} s"


def _simulated(runs: Sequence[Run], variant: Variant) -> str:
    found = [run.compared for run in runs if run.variant == variant and run.compared]
    if not found:
        return "-"
    off = median((one.simulated - one.measured) / one.measured for one in found)
    return f"{median(one.simulated for one in found):.2f} s ({off:+.0%})"


def _cells(found: dict[str, Spread]) -> list[str]:
    seconds = [_range(found[name], "{:.2f}", " s") for name in ("ttft_mean", "ttft_p90")]
    seconds.append(_range(found["tbt_p90"], "{:.3f}", " s"))
    counts = [_range(found[name], "{:.0f}") for name in ("rejected_early", "rejected_late", "failed")]
    shares = [_range(found[name], "{:.0%}") for name in ("accepted_and_failed", "goodput")]
    return [*seconds, _range(found["cached_share"], "{:.0%}"), *counts, *shares]


def _range(spread: Spread, form: str, unit: str = "") -> str:
    middle, least, most = (form.format(value) for value in (spread.middle, spread.least, spread.most))
    return f"{middle}{unit}" if least == most else f"{middle}{unit} [{least}, {most}]"
