"""The newest departures and misses, with their reasons, of the caller's own namespaces."""

from collections.abc import Sequence
from itertools import islice

from mooncask.client import control
from mooncask.daemon.insight.blocks import key_text, tier_text
from mooncask.daemon.insight.gone import Gone
from mooncask.daemon.insight.misses import Missed, Misses
from mooncask.daemon.insight.verdicts import Verdict, Verdicts
from mooncask.tiers.namespace import Namespace

EVENTS_MAX = 1000
LOOKED_AT_MAX = 20_000
"""Departures, also of others, that are looked through for one answer."""


class EventLog:
    """Names what `Gone` and `Misses` remember."""

    def __init__(self, gone: Gone, misses: Misses, verdicts: Verdicts) -> None:
        self._gone = gone
        self._misses = misses
        self._verdicts = verdicts

    def newest(self, mine: Sequence[Namespace], limit: int, wall_minus_monotonic: float) -> control.Events:
        by_id = {namespace.id: namespace for namespace in mine}
        return control.Events(
            departures=self._departures(by_id, limit),
            misses=[
                self._miss(missed, wall_minus_monotonic)
                for missed in self._misses.newest()
                if missed.namespace.id in by_id
            ][:limit],
            since_seconds=self._gone.exact_since_seconds,
        )

    def _departures(self, by_id: dict[int, Namespace], limit: int) -> list[control.Departure]:
        policies = self._verdicts.policies()
        looked_at = islice(self._gone.newest(), LOOKED_AT_MAX)
        wanted = islice((left for left in looked_at if left.namespace in by_id), limit)
        return [
            control.Departure(
                time_seconds=left.seconds,
                namespace=by_id[left.namespace].spec.name,
                key=key_text(by_id[left.namespace], left.key),
                tier=tier_text(left.tier),
                reason=left.reason,
                policy=policies.get(tier_text(left.tier), "") if left.reason == "evicted" else "",
                size_bytes=left.size,
            )
            for left in wanted
        ]

    def _miss(self, missed: Missed, wall_minus_monotonic: float) -> control.Miss:
        seconds = missed.seconds + wall_minus_monotonic
        verdict = self._verdict(missed, seconds)
        return control.Miss(
            time_seconds=seconds,
            namespace=missed.namespace.spec.name,
            key=key_text(missed.namespace, missed.key),
            index=missed.position,
            asked_blocks=missed.asked_blocks,
            hit_blocks=missed.position,
            verdict=verdict.verdict,
            text=verdict.text,
        )

    def _verdict(self, missed: Missed, seconds: float) -> Verdict:
        """How it had left by then. When it is here now, it came after the miss: what it was before is in the log, or nowhere."""
        left = missed.left or self._gone.last(missed.namespace.id, missed.key)
        if left is not None and left.seconds <= seconds:
            return self._verdicts.of_departure(left)
        now = self._verdicts.of(missed.namespace, missed.key)
        if now.verdict == "hit" or left is not None:
            before = self._verdicts.before(missed.namespace, missed.key)
            return Verdict(before.verdict, f"{before.text}; stored since")
        return now
