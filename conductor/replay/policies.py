"""Every policy that a replay can name: those of the daemon, those for comparison, and the offline bound."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from mooncask.conductor.replay.offline import replay_min
from mooncask.conductor.replay.reference import Ranked
from mooncask.conductor.replay.replay import BLOCK_TOKENS, ReplayResult, replay
from mooncask.conductor.traces.request import Request
from mooncask.errors import BadArgument
from mooncask.tiers.policies import POLICY_NAMES, make_policy
from mooncask.tiers.policies.policy import EvictionPolicy

LFU_HISTORY, LENGTH_AWARE, MIN = "lfu-history", "length-aware", "min"

REPLAY_POLICY_NAMES = (*POLICY_NAMES, LFU_HISTORY, LENGTH_AWARE, MIN)
"""The names that `replay_named` knows."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How to replay; see `mooncask.conductor.replay.replay` for what each means."""

    leaf_first: bool = False
    with_hints: bool = False
    block_tokens: int = BLOCK_TOKENS


def replay_named(name: str, trace: Sequence[Request], capacity_blocks: int, options: ReplayOptions) -> ReplayResult:
    """Replay `trace` under the policy of that name. Raises BadArgument for an unknown name or a capacity below 1.

    `min` ignores leaf-first and hints: it is a bound.
    """
    check_policy_name(name)
    if capacity_blocks < 1:
        raise BadArgument("--capacity-blocks", str(capacity_blocks), "at least 1")
    if name == MIN:
        return replay_min(trace, capacity_blocks, block_tokens=options.block_tokens)
    return replay(
        trace,
        capacity_blocks,
        _make(name, capacity_blocks),
        name=name,
        leaf_first=options.leaf_first,
        with_hints=options.with_hints,
        block_tokens=options.block_tokens,
    )


def check_policy_name(name: str) -> None:
    """Raises BadArgument, with the nearest name, when no policy is called that."""
    if name not in REPLAY_POLICY_NAMES:
        close = get_close_matches(name, REPLAY_POLICY_NAMES, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise BadArgument("--policy", name, f"{meant}allowed: {', '.join(REPLAY_POLICY_NAMES)}")


def _make(name: str, capacity_blocks: int) -> EvictionPolicy:
    if name == LFU_HISTORY:
        return Ranked(keep_history=True, latest_first=False)
    if name == LENGTH_AWARE:
        return Ranked(keep_history=False, latest_first=True)
    return make_policy(name, capacity_blocks)
