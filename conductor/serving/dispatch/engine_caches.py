"""What vLLM engines hold in their own prefix caches, in our keys: learned from the events that they publish. Pure.

An engine's block hashes are its own and can't be compared with ours; but it tells the tokens of each block and the block
before it, so our chain is made over the same tokens. What was stored before anybody listened is not known, nor what hangs on
it; images and adapters are passed over. Not here: the socket (`engine_events.py`).
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence

import msgspec

from mooncask.client.hashing import chain, root
from mooncask.client.worker_api import Hashing

BLOCKS_MAX = 200_000
"""Of one engine; beyond, those that were told longest ago are forgotten."""
DEVICE = (None, "GPU")

EngineHash = int | bytes


class BlockStored(msgspec.Struct, frozen=True, tag=True):
    """vLLM's fields that are read here; `extra_keys`: one a block, what its hash has beside tokens."""

    block_hashes: list[EngineHash]
    parent_block_hash: EngineHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[object] | None] | None = None
    group_idx: int | None = None

    def salt(self) -> str | None:
        """Of the first block: the request's cache_salt, "" for none. None when it has anything else."""
        extras = self.extra_keys or []
        if any(extras[1:]) or self.lora_id is not None or self.lora_name is not None:
            return None
        first = extras[0] if extras else None
        if not first:
            return ""
        return first[0] if len(first) == 1 and isinstance(first[0], str) and self.parent_block_hash is None else None


class BlockRemoved(msgspec.Struct, frozen=True, tag=True):
    block_hashes: list[EngineHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    pass


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EngineCache:
    """One engine's. `hashing`: how its store's keys are made. Belongs to the event loop's thread."""

    def __init__(self, hashing: Hashing, blocks_max: int = BLOCKS_MAX) -> None:
        self.hashing, self._blocks_max = hashing, blocks_max
        self._keys: OrderedDict[EngineHash, bytes] = OrderedDict()
        self._held: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._keys)

    def apply(self, event: Event) -> None:
        if isinstance(event, BlockStored):
            self._stored(event)
        elif isinstance(event, BlockRemoved):
            if event.medium in DEVICE and not event.group_idx:
                for block in event.block_hashes:
                    self._forget(block)
        else:
            self.clear()

    def prefix(self, keys: Sequence[bytes]) -> int:
        """How many of these first blocks it holds."""
        return next((i for i, key in enumerate(keys) if not self._held[key]), len(keys))

    def clear(self) -> None:
        self._keys.clear()
        self._held.clear()

    def _stored(self, event: BlockStored) -> None:
        salt, size = event.salt(), self.hashing.block_tokens
        fits = event.block_size == size and len(event.token_ids) == size * len(event.block_hashes)
        if event.medium not in DEVICE or event.group_idx or not fits or salt is None:
            return
        before = self._root(salt) if event.parent_block_hash is None else self._keys.get(event.parent_block_hash)
        if before is None:
            return
        for block, key in zip(
            event.block_hashes, chain(before, event.token_ids, size, hash=self.hashing.hash), strict=True
        ):
            self._forget(block)
            self._keys[block] = key
            self._held[key] += 1
        while len(self._keys) > self._blocks_max:
            self._forget(next(iter(self._keys)))

    def _forget(self, block: EngineHash) -> None:
        key = self._keys.pop(block, None)
        if key is not None:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]

    def _root(self, salt: str) -> bytes:
        told = self.hashing
        return root(bytes.fromhex(told.fingerprint), bytes.fromhex(told.tenant_salt) + salt.encode(), told.hash)
