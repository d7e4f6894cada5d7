"""The Conductor's decision on one request: where it is prefilled, where it decodes, or why it is rejected. Pure.

It joins placement, decode selection and admission over the two boards; the live service and the simulator drive this
same object. Not here: moving bytes, and what each node's cache holds (the caller tells the prefixes).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mooncask.conductor.models.cost import DecodeModel, PrefillModel
from mooncask.conductor.scheduling.admission import Admission
from mooncask.conductor.scheduling.board import DecodeBoard, PrefillBoard
from mooncask.conductor.scheduling.decode import emptiest, select_decode
from mooncask.conductor.scheduling.facts import (
    CachedPrefix,
    DecodeFacts,
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


class Conductor:
    """Decides and keeps the books. Not safe for concurrent use; every call is O(nodes + requests in flight)."""

    def __init__(
        self,
        placement: Placement,
        admission: Admission,
        prefill_model: PrefillModel,
        decode_model: DecodeModel,
        prefills: PrefillBoard,
        decodes: DecodeBoard,
    ) -> None:
        self._placement, self._admission = placement, admission
        self._prefill_model, self._decode_model = prefill_model, decode_model
        self.prefills, self.decodes = prefills, decodes

    def decide(self, arrival: Arrival, prefixes: Sequence[CachedPrefix], costs: PrefillCosts) -> Assignment | Rejection:
        """`prefixes` are what each prefill node has cached. An assignment is entered in the books at once."""
        now = arrival.now_seconds
        nodes = [
            PrefillFacts(
                self.prefills.queue_seconds(i, now),
                prefix.local_tokens,
                prefix.offered_tokens,
                self.prefills.waiting(i),
            )
            for i, prefix in enumerate(prefixes)
        ]
        choice = self._placement.place(arrival.tokens, nodes, costs)
        decodes = self.decodes.facts()
        reason = self._admission.at_arrival(self._load(arrival, choice.ttft_seconds, decodes))
        if reason is not None:
            return Rejection(reason)
        decode = self._select_decode(arrival.tokens, decodes)
        work = costs.occupied_seconds(arrival.tokens, choice.prefix_tokens)
        self.prefills.placed(choice.node, arrival.request, work)
        self.decodes.promised(decode, arrival.request, now + choice.ttft_seconds, arrival.tokens)
        return Assignment(choice, decode)

    def recheck(self, arrival: Arrival, node: int) -> Reason | None:
        """The decode node's own check when the KV has arrived; withdraws the promise if it rejects."""
        here = self.decodes.facts()[node]
        tbt = self._decode_model.seconds(here.requests + 1, here.context_tokens + arrival.tokens)
        facts = LoadFacts(arrival.now_seconds, 0.0, tbt, arrival.tokens, arrival.priority)
        reason = self._admission.after_prefill(facts)
        if reason is not None:
            self.decodes.withdrawn(node, arrival.request)
        return reason

    def observe_prefill(self, tokens: int, prefix: int, seconds: float) -> None:
        self._prefill_model.observe(tokens, prefix, seconds)

    def observe_step(self, batch: int, context_tokens: int, seconds: float) -> None:
        self._decode_model.observe(batch, context_tokens, seconds)

    def _load(self, arrival: Arrival, ttft_seconds: float, decodes: Sequence[DecodeFacts]) -> LoadFacts:
        return LoadFacts(
            now_seconds=arrival.now_seconds,
            ttft_seconds=ttft_seconds,
            tbt_seconds=self._present_tbt(arrival.tokens, decodes),
            context_tokens=arrival.tokens,
            priority=arrival.priority,
            decode_nodes=len(decodes),
            decode_seconds=self.decodes.decode_seconds,
            decoding=self.decodes.decoding(),
            coming=self.decodes.coming(),
        )

    def _select_decode(self, tokens: int, decodes: Sequence[DecodeFacts]) -> int:
        """The fastest node with room; where none has, and admission lets the request wait for it, the emptiest."""
        choice = select_decode(tokens, self.decodes.expected_output, decodes, self._decode_model)
        return emptiest(decodes) if choice is None else choice.node

    def _present_tbt(self, tokens: int, decodes: Sequence[DecodeFacts]) -> float | None:
        """The least step among nodes with room, counting only what decodes now: the lag the paper describes."""
        expected = self.decodes.expected_output
        steps = [
            self._decode_model.seconds(node.requests + 1, node.context_tokens + tokens)
            for node in decodes
            if node.context_tokens + tokens + expected <= node.capacity_tokens
        ]
        return min(steps, default=None)
