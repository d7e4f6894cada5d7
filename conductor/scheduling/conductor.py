"""The Conductor of the simulator: it decides on each request and keeps the books of what it has decided. Pure.

Not here: moving bytes, and what each node's cache holds (the caller tells the prefixes).
"""

from collections.abc import Sequence

from mooncask.conductor.models.cost import DecodeModel, PrefillModel
from mooncask.conductor.scheduling.admission import Admission
from mooncask.conductor.scheduling.board import DecodeBoard, PrefillBoard
from mooncask.conductor.scheduling.decision import Arrival, Assignment, Policies, PoolFacts, Rejection
from mooncask.conductor.scheduling.facts import CachedPrefix, PrefillCosts, PrefillFacts, Reason
from mooncask.conductor.scheduling.placement import Placement, with_shared


class Conductor:
    """Not safe for concurrent use; every call is O(nodes + requests in flight)."""

    def __init__(
        self,
        placement: Placement,
        admission: Admission,
        prefill_model: PrefillModel,
        decode_model: DecodeModel,
        prefills: PrefillBoard,
        decodes: DecodeBoard,
        shared: bool = False,
    ) -> None:
        """`shared`: a node's store brings what others hold by itself."""
        self._policies = Policies(placement, admission, decode_model)
        self._prefill_model, self._decode_model = prefill_model, decode_model
        self.prefills, self.decodes, self._shared = prefills, decodes, shared

    def decide(self, arrival: Arrival, prefixes: Sequence[CachedPrefix], costs: PrefillCosts) -> Assignment | Rejection:
        """`prefixes` are what each prefill node has cached. An assignment is entered in the books at once."""
        now = arrival.now_seconds
        decision = self._policies.decide(arrival, self._facts(now, prefixes, costs), costs)
        if isinstance(decision, Assignment):
            choice = decision.prefill
            work = costs.occupied_seconds(arrival.tokens, choice.prefix_tokens)
            self.prefills.placed(choice.node, arrival.request, work)
            self.decodes.promised(decision.decode, arrival.request, now + choice.ttft_seconds, arrival.tokens)
        return decision

    def recheck(self, arrival: Arrival, node: int) -> Reason | None:
        """The decode node's own check when the KV has arrived; withdraws the promise if it rejects."""
        reason = self._policies.recheck(arrival, self.decodes.facts()[node])
        if reason is not None:
            self.decodes.withdrawn(node, arrival.request)
        return reason

    def observe_prefill(self, tokens: int, prefix: int, seconds: float) -> None:
        self._prefill_model.observe(tokens, prefix, seconds)

    def observe_step(self, batch: int, context_tokens: int, seconds: float) -> None:
        self._decode_model.observe(batch, context_tokens, seconds)

    def _facts(self, now: float, prefixes: Sequence[CachedPrefix], costs: PrefillCosts) -> PoolFacts:
        nodes = [
            PrefillFacts(
                self.prefills.queue_seconds(i, now),
                prefix.local_tokens,
                prefix.offered_tokens,
                self.prefills.waiting(i),
            )
            for i, prefix in enumerate(prefixes)
        ]
        if self._shared:
            nodes = with_shared(nodes, costs)
        return PoolFacts(
            prefills=nodes,
            decodes=self.decodes.facts(),
            expected_output=self.decodes.expected_output,
            decode_seconds=self.decodes.decode_seconds,
            decoding=self.decodes.decoding(),
            coming=self.decodes.coming(),
        )
