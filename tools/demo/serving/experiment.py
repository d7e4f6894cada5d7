"""What the serving demo measures: what the workers can do, then every policy under the same load, seed after seed."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from mooncask.conductor.serving.pages.rows import PauseRow
from mooncask.errors import WorkerUnavailable
from mooncask.tools.demo.serving.chats import Chat, Shape, documents, make_chats
from mooncask.tools.demo.serving.load import offer, press
from mooncask.tools.demo.serving.processes import Policy, ServingStage
from mooncask.tools.demo.serving.reply import Figures, Levels, Outcome, Reply, figures
from mooncask.tools.demo.serving.simulated import Compared, Constants, compare
from mooncask.tools.demo.serving.variant import Variant

Tell = Callable[[str], None]

UNLIMITED = 3600.0
ALONE_SEEDS, PRESS_SEED = (1001, 1002, 1003), 1004
"""The first of those alone warms up."""
TTFT_FACTOR, TBT_FACTOR = 5.0, 5.0
"""Service levels: so many times what a request alone takes."""
PAUSE_TTFT_FACTOR = 2.0
"""Where pauses are compared: prefill beside a decoding batch takes about twice as long, so a laxer level would never need one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`load`: of the sustainable rate. `ttft_factor`: the level of TTFT, in what a request alone takes."""

    shape: Shape
    pressed_chats: int
    answer_tokens: int
    load: float
    seeds: Sequence[int]
    variants: Sequence[Variant]
    ttft_factor: float = TTFT_FACTOR


@dataclass(frozen=True, slots=True)
class Capacity:
    """Measured before anything else. Seconds; requests a second."""

    ttft_alone: float
    tbt_alone: float
    sustainable: float

    def levels(self, ttft_factor: float) -> Levels:
        return Levels(ttft_factor * self.ttft_alone, TBT_FACTOR * self.tbt_alone)


@dataclass(slots=True)
class Run:
    """One policy under one seed's load."""

    variant: Variant
    seed: int
    figures: Figures
    replies: list[Reply] = field(repr=False)
    constants: Constants
    compared: Compared | None
    """Its mean TTFT beside that of the simulator; None where nothing was answered."""
    pauses: PauseRow


@dataclass(slots=True)
class Results:
    """Filled in as the runs end, so that what was measured before an interruption is not lost."""

    plan: Plan
    capacity: Capacity
    runs: list[Run] = field(default_factory=list)

    @property
    def levels(self) -> Levels:
        return self.capacity.levels(self.plan.ttft_factor)


def measure_capacity(stage: ServingStage, plan: Plan, tell: Tell) -> Capacity:
    """A chat alone, then as many at a time as there is room to decode, both without admission control."""
    texts = documents()
    alone = [chat for seed in ALONE_SEEDS for chat in make_chats(Shape(1, 2, 1), 1.0, seed, texts)]
    stage.conduct(Policy(Variant("load-balancing", "none"), UNLIMITED, UNLIMITED))
    replies: list[Reply] = []
    asyncio.run(press(stage.url, alone, 1, plan.answer_tokens, _heard(tell, "alone", 2 * len(alone), replies)))
    _all_answered(replies)
    shape = Shape(plan.pressed_chats, plan.shape.turns, max(2, plan.shape.documents // 2))
    pressed = make_chats(shape, 1.0, PRESS_SEED, texts)
    told: list[Reply] = []
    heard = _heard(tell, "as fast as they can", shape.requests, told)
    rate = asyncio.run(press(stage.url, pressed, plan.pressed_chats, plan.answer_tokens, heard))
    _all_answered(told)
    return Capacity(
        median(reply.ttft for reply in replies[2:] if reply.turn == 0),
        median(gap for reply in replies[2:] for gap in reply.gaps),
        rate,
    )


def run_all(stage: ServingStage, results: Results, tell: Tell, keep: Callable[[Results], None]) -> None:
    """Seed by seed, so that each policy meets about the same state of the machine; `keep` is called after each run."""
    plan, capacity = results.plan, results.capacity
    for turn, seed in enumerate(plan.seeds):
        chats = make_chats(plan.shape, plan.load * capacity.sustainable, seed, documents())
        first = turn % len(plan.variants)  # nobody is always the one that comes first, or last
        for variant in [*plan.variants[first:], *plan.variants[:first]]:
            results.runs.append(_run(stage, results, chats, variant, seed, tell))
            keep(results)


def _run(stage: ServingStage, results: Results, chats: list[Chat], variant: Variant, seed: int, tell: Tell) -> Run:
    plan, levels = results.plan, results.levels
    pause = f", pause {variant.pause}" if len({one.pause for one in plan.variants}) > 1 else ""
    name = f"seed {seed}, {variant.placement}, {variant.admission}{pause}"
    tell(f"{name}: starting")
    stage.conduct(Policy(variant, levels.ttft_seconds, levels.tbt_seconds))
    told: list[Reply] = []
    asyncio.run(offer(stage.url, chats, plan.answer_tokens, _heard(tell, name, plan.shape.requests, told)))
    constants = stage.learned()
    compared = compare(told, constants, variant.placement, levels, seed)
    found = figures(told, plan.shape.requests, levels)
    return Run(variant, seed, found, told, constants, compared, stage.pauses())


def _heard(tell: Tell, name: str, of: int, replies: list[Reply]) -> Callable[[Reply], None]:
    def heard(reply: Reply) -> None:
        replies.append(reply)
        what = f"first word after {reply.ttft:.2f} s" if reply.outcome is Outcome.ANSWERED else reply.message
        tell(f"{name}: {len(replies)} of {of}; {reply.chat}, turn {reply.turn + 1}: {reply.outcome}, {what}")

    return heard


def _all_answered(replies: Sequence[Reply]) -> None:
    for reply in replies:
        if reply.outcome is not Outcome.ANSWERED:
            raise WorkerUnavailable("conductor", f"without load a request was {reply.outcome}: {reply.message}")
