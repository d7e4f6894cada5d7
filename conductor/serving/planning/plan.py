"""From a model's recorded load and its workers to a recommendation: how many should prefill in the coming slot, and which
change sides. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from mooncask.client.worker_api import Role
from mooncask.conductor.scheduling.tide import Loads, RollingPlanner, TideCosts

SLOTS_MIN = 2
"""Of load that must have been recorded before anything is recommended."""


class Change(msgspec.Struct, frozen=True):
    """One worker and the role that it should take. `restart`: it can't while it runs, so its server is to be started anew in that
    role by whoever runs it: a vLLM server whose connector does one thing only."""

    worker: str
    role: Role
    restart: bool = False


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """For the slot that begins at `at` (seconds since 1970), with all changes made, restarts included. Loads are those of the
    last slot, in workers."""

    model: str
    at: float
    prefill: int
    decode: int
    prefill_now: int
    decode_now: int
    prefill_load: float
    decode_load: float
    wanted: int
    """Workers that would be busy to `1 - headroom` at that load, whether there are so many or not: for scaling the fleet."""
    changes: list[Change] = []


@dataclass(frozen=True, slots=True)
class Member:
    """A worker as a plan sees it. `busy`: whoever has least to lose changes first; `restart`: behind all who can change as they
    run."""

    name: str
    role: Role
    busy: float
    may_change: bool = True
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Outlook:
    """How plans are made; what `tide.RollingPlanner` and `TideCosts` ask for."""

    slots_a_day: int
    horizon_slots: int
    warm_up_slots: float
    headroom: float = 0.05


def recommend(
    model: str, at: float, loads: Loads, members: Sequence[Member], outlook: Outlook
) -> Recommendation | None:
    """None while too little is known, or one worker does not make two pools. Each role keeps one worker at least."""
    prefills = sum(member.role is Role.PREFILL for member in members)
    if len(loads) < SLOTS_MIN or len(members) < 2:
        return None
    costs = TideCosts(nodes=len(members), warm_up_slots=outlook.warm_up_slots, headroom=outlook.headroom)
    planner = RollingPlanner(costs, outlook.slots_a_day, outlook.horizon_slots)
    wanted = min(len(members) - 1, max(1, planner.next_slot(loads, prefills)))
    changes = _changes(members, wanted - prefills)
    reached = prefills + sum(1 if change.role is Role.PREFILL else -1 for change in changes)
    prefill_load, decode_load = (float(load) for load in loads[-1])
    return Recommendation(
        model=model,
        at=at,
        prefill=reached,
        decode=len(members) - reached,
        prefill_now=prefills,
        decode_now=len(members) - prefills,
        prefill_load=prefill_load,
        decode_load=decode_load,
        wanted=_enough(prefill_load, outlook.headroom) + _enough(decode_load, outlook.headroom),
        changes=changes,
    )


def _changes(members: Sequence[Member], more_prefills: int) -> list[Change]:
    """The least busy ones of the side that gets smaller, as far as they may."""
    to = Role.PREFILL if more_prefills > 0 else Role.DECODE
    able = [m for m in members if m.role is not to and m.may_change]
    able.sort(key=lambda member: (member.restart, member.busy, member.name))
    return [Change(member.name, to, member.restart) for member in able[: abs(more_prefills)]]


def _enough(load: float, headroom: float) -> int:
    return max(1, -int(-load // (1 - headroom)))
