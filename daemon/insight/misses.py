"""The look-ups that lately did not find their whole prefix. Noted cheaply; why they missed is found out by who reads them."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from mooncask.daemon.insight.gone import Gone, Name
from mooncask.daemon.insight.lookups import Lookup
from mooncask.tiers.departures import Departure
from mooncask.tiers.namespace import Namespace

MISSES_MAX = 1024


class Missed(NamedTuple):
    """The first block that missed of one look-up, number `position`, at `seconds` (`time.monotonic()`). `left`: how it had left, if that is known."""

    seconds: float
    namespace: Namespace
    key: bytes
    position: int
    asked_blocks: int
    left: Departure | None


class Misses:
    """An observer of look-ups. Of several that miss the same block the latest is kept: engines match, then acquire."""

    def __init__(self, gone: Gone) -> None:
        self._gone = gone
        self._missed: OrderedDict[Name, Missed] = OrderedDict()

    def looked(self, lookups: Sequence[Lookup]) -> None:
        for lookup in lookups:
            if lookup.hits < len(lookup.keys):
                self._note(lookup)

    def _note(self, lookup: Lookup) -> None:
        key = lookup.keys[lookup.hits]
        name = Name(lookup.namespace.id, key)
        left = self._gone.last(*name)
        self._missed.pop(name, None)
        self._missed[name] = Missed(lookup.seconds, lookup.namespace, key, lookup.hits, len(lookup.keys), left)
        if len(self._missed) > MISSES_MAX:
            self._missed.popitem(last=False)

    def newest(self) -> list[Missed]:
        """Newest first."""
        return list(reversed(self._missed.values()))
