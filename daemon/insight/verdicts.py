"""What became of one block: here, on its way, left at a known time and for a known reason, or not known, said honestly."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from mooncask.daemon.arrivals import Key
from mooncask.daemon.insight.blocks import tier_text, tiers_of
from mooncask.daemon.insight.gone import Gone
from mooncask.daemon.service import Service
from mooncask.tiers.departures import Departure
from mooncask.tiers.namespace import Namespace


@dataclass(frozen=True, slots=True)
class Verdict:
    """As the fields of `control.WhyBlock` that are not the block's own."""

    verdict: str
    text: str
    tiers: tuple[str, ...] = ()
    time_seconds: float = 0.0
    tier: str = ""
    policy: str = ""


class Verdicts:
    """Asks the catalogue, the arrivals and the log of departures, in this order."""

    def __init__(self, service: Service, gone: Gone) -> None:
        self._service = service
        self._store = service.store
        self._gone = gone
        self._older = frozenset(namespace.id for namespace in service.store.namespaces())
        """Namespaces that an earlier run of the daemon had: what left them then is not known."""

    def of(self, namespace: Namespace, key: bytes) -> Verdict:
        if self._store.has(namespace, key):
            tiers = tuple(tiers_of(self._store.catalogue, namespace.index[key]))
            return Verdict("hit", f"here, in {' and '.join(tiers) or 'no tier yet'}", tiers)
        slot = namespace.index.get(key)
        if slot is not None:
            ended = self._store.catalogue.ttl[slot]
            return Verdict("expired", f"its time to live ended at {clock_text(ended)}", (), ended)
        name = Key(namespace.id, key)
        arrivals = self._service.arrivals
        if name in arrivals:
            if arrivals.is_written(name):
                return Verdict("being_written", "somebody is writing it now")
            return Verdict("expected", "announced by somebody who has not begun to write it")
        left = self._gone.last(namespace.id, key)
        return self.of_departure(left) if left is not None else self.before(namespace, key)

    async def elsewhere(self, namespace: Namespace, key_hex: str) -> str:
        """What other nodes and the bucket have or had of a block of a KV namespace; empty where there is nobody to ask."""
        if namespace.spec.kind != "kv":
            return ""
        cluster, cold, key = self._service.cluster, self._service.cold, bytes.fromhex(key_hex)
        nodes = await cluster.whereabouts.one_in_words(namespace, key) if cluster is not None else ""
        return "; ".join(filter(None, (nodes, cold.in_words(namespace, key) if cold is not None else "")))

    def of_departure(self, left: Departure) -> Verdict:
        tier = tier_text(left.tier)
        policy = self.policies().get(tier, "") if left.reason == "evicted" else ""
        text = _TEXTS[left.reason].format(when=clock_text(left.seconds), tier=tier, policy=policy)
        return Verdict(left.reason, text, (), left.seconds, tier, policy)

    def policies(self) -> Mapping[str, str]:
        """Of each tier by its name."""
        return {tier_text(tier.name): tier.policy for tier in self._store.status().tiers}

    def before(self, namespace: Namespace, key: bytes) -> Verdict:
        """What can be said of a key whose departure is not in the log."""
        gone = self._gone
        if gone.may_have_been(namespace.id, key):
            since = clock_text(gone.exact_since_seconds)
            return Verdict("forgotten", f"it seems to have left before {since}, where the log of departures begins")
        if namespace.id in self._older or gone.known_since_seconds > gone.began_seconds:
            since = clock_text(gone.known_since_seconds)
            return Verdict("forgotten", f"not stored since {since}; what left before that is not known any more")
        since = clock_text(gone.began_seconds)
        return Verdict("never_stored", f"never stored: all that this namespace had since {since} is known")


_TEXTS = {
    "evicted": "evicted at {when} from {tier} by {policy}",
    "expired": "its time to live ended at {when}, in {tier}",
    "deleted": "deleted at {when}, from {tier}",
    "quarantined": "its bytes were found wrong in {tier} at {when}, and quarantined",
    "replaced": "replaced by a newer version at {when}, which has left too",
    "lost_dirty": "had to leave {tier} at {when} before it could be written to nvme, which was degraded or full",
    "withdrawn": "taken back at {when}: it found no room on nvme, where it had to be kept",
}


def clock_text(seconds: float, now: float | None = None) -> str:
    """12:04:11 of today, with the date where it is another day; in this machine's time zone."""
    moment, today = time.localtime(seconds), time.localtime(time.time() if now is None else now)
    return time.strftime("%H:%M:%S" if moment[:3] == today[:3] else "%Y-%m-%d %H:%M:%S", moment)
