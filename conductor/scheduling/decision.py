"""The decision on one request from facts alone: placement, decode selection and admission in one step. Pure.

`conductor.py` makes the facts from its own books (the simulator), the live service from its workers' reports; what is
decided on equal facts is equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mooncask.conductor.models.cost import DecodeModel
from mooncask.conductor.scheduling.admission import Admission
from mooncask.conductor.scheduling.decode import emptiest, select_decode
from mooncask.conductor.scheduling.facts import (
    DecodeFacts,
    Decoding,
    LoadFacts,
    PrefillChoice,
    PrefillCosts,
    PrefillFacts,
    Reason,
)
from mooncask.conductor.scheduling.placement import Placement


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as it arrives. Its output length is not known to anybody."""

    request: int
    now_seconds: float
    tokens: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Rejection:
    reason: Reason


@dataclass(frozen=True, slots=True)
class Assignment:
    prefill: PrefillChoice
    decode: int


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """Both pools as they stand. A node is named by its index in these sequences."""

    prefills: Sequence[PrefillFacts]
    decodes: Sequence[DecodeFacts]
    expected_output: int
    decode_seconds: float | None = None
    """How long requests decoded lately; None while nobody knows."""
    decoding: Sequence[Decoding] = field(default=())
    coming: Sequence[Decoding] = field(default=())


@dataclass(frozen=True, slots=True)
class Policies:
    placement: Placement
    admission: Admission
    decode_model: DecodeModel

    def decide(self, arrival: Arrival, pools: PoolFacts, costs: PrefillCosts) -> Assignment | Rejection:
        """Where the request goes, or why nowhere. Neither pool is empty. O(nodes + requests in flight)."""
        choice = self.placement.place(arrival.tokens, pools.prefills, costs)
        reason = self.admission.at_arrival(self._load(arrival, choice.ttft_seconds, pools))
        if reason is not None:
            return Rejection(reason)
        return Assignment(choice, self.select_decode(arrival.tokens, pools))

    def recheck(self, arrival: Arrival, here: DecodeFacts) -> Reason | None:
        """The decode node's own check when the KV has arrived."""
        tbt = self.decode_model.seconds(here.requests + 1, here.context_tokens + arrival.tokens)
        return self.admission.after_prefill(LoadFacts(arrival.now_seconds, 0.0, tbt, arrival.tokens, arrival.priority))

    def select_decode(self, tokens: int, pools: PoolFacts) -> int:
        """The fastest node with room; where none has, and admission lets the request wait for it, the emptiest."""
        choice = select_decode(tokens, pools.expected_output, pools.decodes, self.decode_model)
        return emptiest(pools.decodes) if choice is None else choice.node

    def _load(self, arrival: Arrival, ttft_seconds: float, pools: PoolFacts) -> LoadFacts:
        return LoadFacts(
            now_seconds=arrival.now_seconds,
            ttft_seconds=ttft_seconds,
            tbt_seconds=self._present_tbt(arrival.tokens, pools),
            context_tokens=arrival.tokens,
            priority=arrival.priority,
            decode_nodes=len(pools.decodes),
            decode_seconds=pools.decode_seconds,
            decoding=pools.decoding,
            coming=pools.coming,
        )

    def _present_tbt(self, tokens: int, pools: PoolFacts) -> float | None:
        """The least step among nodes with room, counting only what decodes now: the lag the paper describes."""
        steps = [
            self.decode_model.seconds(node.requests + 1, node.context_tokens + tokens)
            for node in pools.decodes
            if node.context_tokens + tokens + pools.expected_output <= node.capacity_tokens
        ]
        return min(steps, default=None)
