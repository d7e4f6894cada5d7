"""What a run of the demo has to show, decided from its measurements. Pure.

Tokens must be those of the reference run without the store. Where the first differing token was a coin toss in the
reference (its two best logits less than TIE_GAP apart), that is a tie: it is counted, and the comparison ends there,
because everything after it continues another text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

TIE_GAP = 1e-3
SPEEDUP_EXPECTED = 8.0
LONG_PROMPT_TOKENS = 1500


class Comparison(StrEnum):
    IDENTICAL = "identical"
    TIE = "tie"
    DIFFERENT = "different"


class Phase(StrEnum):
    FIRST = "first session"
    AFTER_KILL = "after kill -9"


@dataclass(frozen=True, slots=True)
class Row:
    """One request of the session beside its reference run. Tokens are prompt tokens; durations are seconds."""

    phase: Phase
    name: str
    prompt_tokens: int
    loaded_dram: int
    loaded_nvme: int
    computed_by_prefill: int
    computed_by_decode: int
    ttft_cold_s: float
    ttft_s: float
    comparison: Comparison
    reason: str
    faults: int

    @property
    def speedup(self) -> float:
        return self.ttft_cold_s / self.ttft_s

    @property
    def loaded(self) -> int:
        return self.loaded_dram + self.loaded_nvme

    @property
    def full_hit(self) -> bool:
        """Everything that could be loaded was, and prefill had nothing to do."""
        return self.loaded > 0 and self.computed_by_prefill == 0


@dataclass(frozen=True, slots=True)
class Control:
    """The negative control: the same blocks under other names, once as they were, once with one block's signs flipped."""

    copied: Comparison
    flipped: Comparison
    copied_loaded: int
    flipped_loaded: int

    @property
    def ok(self) -> bool:
        same = self.copied is not Comparison.DIFFERENT and self.copied_loaded > 0
        return same and self.flipped is Comparison.DIFFERENT and self.flipped_loaded > 0


@dataclass(frozen=True, slots=True)
class Verdict:
    problems: tuple[str, ...]
    ties: int
    full_hit_speedup: float | None
    """Median over the full hits of long prompts; None without any."""

    @property
    def ok(self) -> bool:
        return not self.problems


def compare(reference: Sequence[int], reference_gaps: Sequence[float], tokens: Sequence[int]) -> Comparison:
    """`reference_gaps[i]` is how far the two best logits lay apart when the reference chose its token i."""
    for position, (want, got) in enumerate(zip(reference, tokens, strict=False)):
        if want != got:
            return Comparison.TIE if reference_gaps[position] < TIE_GAP else Comparison.DIFFERENT
    return Comparison.IDENTICAL if len(reference) == len(tokens) else Comparison.DIFFERENT


def judge(rows: Sequence[Row], control: Control) -> Verdict:
    problems = [f"{row.phase}, {row.name}: tokens differ from the run without the store"
                for row in rows if row.comparison is Comparison.DIFFERENT]  # fmt: skip
    for phase in Phase:
        if not any(row.loaded for row in rows if row.phase is phase):
            problems.append(f"{phase}: nothing was reused")
    if not control.ok:
        problems.append(_control_problem(control))
    hits = [row.speedup for row in rows if row.full_hit and row.prompt_tokens >= LONG_PROMPT_TOKENS]
    ties = sum(row.comparison is Comparison.TIE for row in rows)
    return Verdict(tuple(problems), ties, median(hits) if hits else None)


def _control_problem(control: Control) -> str:
    if not (control.copied_loaded and control.flipped_loaded):
        return "negative control: its blocks were not loaded, so it shows nothing"
    if control.copied is Comparison.DIFFERENT:
        return "negative control: unchanged copies of the blocks gave other tokens"
    return "negative control: a block with flipped bits made no difference, so loaded bytes are not used"
