"""Which chains are read often: told of look-ups, answers with the blocks that best stand for them.

Two counts: of chains by their first block that was asked for, and by their last. The first finds a common beginning of
many chains (a system prompt), which is then named by its last block that is read as often; the second finds whole chains.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mooncask.client import control
from mooncask.daemon.insight.blocks import key_text, tiers_of
from mooncask.daemon.insight.counts import FadingCounts
from mooncask.daemon.insight.lookups import Lookup, LookupKind
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.store import Store

CHAINS_MAX = 512
"""Counted exactly enough: a chain that gets more than one of so many reads is among them."""
CANDIDATES = 64
TIPS_MAX = 4 * CHAINS_MAX
BLOCKS_MAX = 8192
"""Of one chain, that are walked for one answer."""
AS_OFTEN = 0.8
"""A block is read as often as another when it has this share of its reads."""


class _Chain(NamedTuple):
    namespace: int
    key: bytes


class _Read(NamedTuple):
    """A chain from the first of its blocks that was asked for to the last one that was here."""

    namespace: Namespace
    first: bytes
    last: bytes


class _Candidate(NamedTuple):
    """A chain that may be told: from `first` up to some block before `tip` that is read as often."""

    first: _Chain
    tip: bytes
    rate: float


class HotChains:
    """An observer of look-ups. Counts what is read: acquires and GETs, not matches."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._catalogue = store.catalogue
        self._clock = clock
        self._by_first: FadingCounts[_Chain] = FadingCounts(CHAINS_MAX, clock())
        self._by_last: FadingCounts[_Chain] = FadingCounts(CHAINS_MAX, clock())
        self._tips: dict[_Chain, bytes] = {}
        """For each first block the last block of the chain that was read latest."""

    def looked(self, lookups: Sequence[Lookup]) -> None:
        """Those that are told together count as of one moment."""
        read: Counter[_Read] = Counter()
        for kind, namespace, keys, hits, *_ in lookups:
            if hits and kind is not LookupKind.MATCH:
                read[_Read(namespace, keys[0], keys[hits - 1])] += 1
        if not read:
            return
        by_first: Counter[_Chain] = Counter()
        by_last: Counter[_Chain] = Counter()
        for (namespace, first, last), count in read.items():
            if namespace.spec.kind == "kv":
                chain = _Chain(namespace.id, first)
                by_first[chain] += count
                by_last[_Chain(namespace.id, last)] += count
                self._tips[chain] = last
        self._by_first.add(by_first, lookups[-1].seconds)
        self._by_last.add(by_last, lookups[-1].seconds)
        if len(self._tips) > TIPS_MAX:
            self.tidy()

    def tidy(self) -> None:
        """To be called now and then."""
        now = self._clock()
        self._by_first.start_anew_if_needed(now)
        self._by_last.start_anew_if_needed(now)
        self._tips = {first: tip for first, tip in self._tips.items() if first in self._by_first}

    async def hottest(self, namespaces: Sequence[Namespace], count: int) -> list[control.HotChain]:
        """Of these namespaces, hottest first; a block stands for one chain at most."""
        mine = {namespace.id: namespace for namespace in namespaces}
        found: dict[_Chain, control.HotChain] = {}
        for chain, tip, rate in self._candidates():
            namespace = mine.get(chain.namespace)
            view = self._view(namespace, chain.key, tip, rate) if namespace is not None else None
            if view is not None and namespace is not None:
                name = _Chain(namespace.id, bytes.fromhex(view.key))
                if name not in found or found[name].rate < rate:
                    found[name] = view
            await asyncio.sleep(0)  # a path of thousands of blocks takes a millisecond
        return sorted(found.values(), key=lambda view: (-view.rate, view.key))[:count]

    def _candidates(self) -> list[_Candidate]:
        """Common beginnings, and whole chains, whose first block is their tip."""
        now = self._clock()
        begun = self._by_first.most_frequent(CANDIDATES, now)
        whole = self._by_last.most_frequent(CANDIDATES, now)
        return [
            *(_Candidate(one.thing, self._tips.get(one.thing, one.thing.key), one.rate) for one in begun),
            *(_Candidate(one.thing, one.thing.key, one.rate) for one in whole),
        ]

    def _view(self, namespace: Namespace, first: bytes, tip: bytes, rate: float) -> control.HotChain | None:
        """The chain up to the last block before `tip` that is read as often as `first`; None when it is not here any more."""
        catalogue = self._catalogue
        path = self._path(namespace, tip)
        start = namespace.index.get(first)
        if start is None or start not in path:
            return None
        least = AS_OFTEN * catalogue.hits[start]
        end = max(i for i, slot in enumerate(path) if catalogue.hits[slot] >= least)
        slot, chain = path[end], path[: end + 1]
        return control.HotChain(
            namespace=namespace.spec.name,
            key=key_text(namespace, catalogue.keys[slot]),
            depth=catalogue.depth[slot],
            tokens=sum(catalogue.tokens[s] for s in chain),
            size_bytes=sum(catalogue.size[s] for s in chain),
            hits=catalogue.hits[slot],
            rate=rate,
            tiers=tiers_of(catalogue, slot),
        )

    def _path(self, namespace: Namespace, tip: bytes) -> list[int]:
        """Slots from the chain's beginning to `tip`, as far as they are here."""
        path: list[int] = []
        slot = namespace.index.get(tip)
        while slot is not None and len(path) < BLOCKS_MAX:
            path.append(slot)
            parent = self._catalogue.parents[slot]
            slot = namespace.index.get(parent) if parent else None
        return path[::-1]
