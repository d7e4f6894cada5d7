"""What vLLM engines hold in their own prefix caches, in our keys: learned from the events that they publish. Pure.

An engine's block hashes are its own and can't be compared with ours; but it tells the tokens of each block and the block
before it, so our chain is made over the same tokens. What was stored before anybody listened is not known, nor what hangs on
it; images and adapters are passed over. Not here: the socket (`kv_events/following.py`).
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence

from mooncask.client.hashing import chain, root
from mooncask.client.worker_api import Hashing
from mooncask.conductor.serving.kv_events.events import GPU, Event, Removed, Stored

BLOCKS_MAX = 200_000
"""Of one engine; beyond, those that were told longest ago are forgotten."""


class EngineCache:
    """One engine's. `hashing`: how its store's keys are made. Belongs to the event loop's thread."""

    def __init__(self, hashing: Hashing, blocks_max: int = BLOCKS_MAX) -> None:
        self.hashing, self._blocks_max = hashing, blocks_max
        self._keys: OrderedDict[int, bytes] = OrderedDict()
        self._held: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._keys)

    def apply(self, event: Event) -> None:
        if isinstance(event, Stored):
            self._stored(event)
        elif isinstance(event, Removed):
            if event.medium == GPU and not event.group:
                for block in event.hashes:
                    self._forget(block)
        else:
            self.clear()

    def prefix(self, keys: Sequence[bytes]) -> int:
        """How many of these first blocks it holds."""
        return next((i for i, key in enumerate(keys) if not self._held[key]), len(keys))

    def clear(self) -> None:
        self._keys.clear()
        self._held.clear()

    def _stored(self, event: Stored) -> None:
        salt, size = salt_of(event), self.hashing.block_tokens
        fits = event.block_tokens == size and len(event.tokens) == size * len(event.hashes)
        if event.medium != GPU or event.group or not fits or salt is None:
            return
        before = self._root(salt) if event.parent is None else self._keys.get(event.parent)
        if before is None:
            return
        for block, key in zip(event.hashes, chain(before, event.tokens, size, hash=self.hashing.hash), strict=True):
            self._forget(block)
            self._keys[block] = key
            self._held[key] += 1
        while len(self._keys) > self._blocks_max:
            self._forget(next(iter(self._keys)))

    def _forget(self, block: int) -> None:
        key = self._keys.pop(block, None)
        if key is not None:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]

    def _root(self, salt: str) -> bytes:
        told = self.hashing
        return root(bytes.fromhex(told.fingerprint), bytes.fromhex(told.tenant_salt) + salt.encode(), told.hash)


def salt_of(event: Stored) -> str | None:
    """The request's cache_salt, which the first block of a chain tells, "" for none. None when there is anything else."""
    if event.lora or any(event.extra[1:]):
        return None
    first = event.extra[0] if event.extra else None
    if not first:
        return ""
    return first[0] if len(first) == 1 and isinstance(first[0], str) and event.parent is None else None
