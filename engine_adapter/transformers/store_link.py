"""A worker's way to the store. Whatever fails there is a miss: the request goes on by computing, and says so.

A StoreLink lives as long as the worker and connects when a daemon is there. A StoreSession is one request's use of it:
it counts faults by error class, and after the daemon went away or was late it does not ask again in that request.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.prompt_keys import prompt_keys
from mooncask.client.wire import CommitState, HintFields, Tier
from mooncask.engine_adapter.transformers.kv_layout import KvBuffer, KvLayout
from mooncask.engine_adapter.transformers.loading import NO_HIT, Hit, LeftOut
from mooncask.engine_adapter.transformers.messages import Loaded
from mooncask.engine_adapter.transformers.stored_chunk import StoredChunk
from mooncask.errors import DaemonUnavailable, DeadlineExceeded, MooncaskError

log = logging.getLogger(__name__)

WINDOW_BYTES = 64 << 20
"""Bytes leased or reserved at a time: a long prefix must not hold more of DRAM than the daemon lets one hold."""
PRIORITY_NEUTRAL = 128
WANTED_SECONDS = 0.5
"""So often whoever waits for blocks is asked whether they are still wanted."""
ARRIVING_BYTES = 16 << 20
"""Bytes waited for at a time while a prefill stores them: what is there is copied while the rest is computed."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where the store is and how long one call may take. `namespace` may be empty: the daemon names it by family."""

    socket: str
    namespace: str = ""
    mode: str = ""
    deadline_seconds: float = 2.0
    publish_tokens: bool = False
    """Tell the daemon the tokens of what is stored, for routers that follow its KV events."""


@dataclass(slots=True)
class LoadOutcome:
    """What was really loaded: `blocks` from the first on, their bytes by tier, and the seconds it all took."""

    blocks: int = 0
    bytes_by_tier: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0

    def tokens(self, layout: KvLayout) -> Loaded:
        by_tier = {tier: size // layout.token_bytes for tier, size in self.bytes_by_tier.items()}
        return Loaded(*(by_tier.get(tier, 0) for tier in (Tier.HBM, Tier.DRAM, Tier.NVME, Tier.PEER, Tier.COLD)))


class StoreLink:
    """Not safe for concurrent use."""

    def __init__(self, address: StoreAddress, name: str, family: dict[str, str], layout: KvLayout) -> None:
        self.address, self.name, self.layout = address, name, layout
        self._family = family
        self._client: LocalClient | None = None
        self.namespace: NamespaceHandle | None = None
        self._background: ThreadPoolExecutor | None = None

    def connect(self) -> tuple[LocalClient, NamespaceHandle]:
        """Connects once; then the client keeps it up by itself. Raises DaemonUnavailable, FamilyMismatch and the like."""
        if self._client is None:
            self._client = LocalClient.connect(
                self.address.socket, name=self.name, deadline_seconds=self.address.deadline_seconds
            )
        if self.namespace is None:
            self.namespace = self._client.open_namespace(
                self.address.namespace, family=self._family, mode=self.address.mode
            )
        return self._client, self.namespace

    def session(self, wanted: bool = True, priority: int = PRIORITY_NEUTRAL) -> "StoreSession":
        """One request's use of the store; it does nothing at all when the store is not wanted. `priority`, 0 to 255, is told
        with every block that it stores or uses: a policy may let those of low priority leave first."""
        return StoreSession(self, wanted, priority)

    def in_background(self, call: Callable[[], StoredChunk | None]) -> "Future[StoredChunk | None]":
        """Runs it in the link's own thread, one call after the other."""
        if self._background is None:
            self._background = ThreadPoolExecutor(1, "mooncask-reserve")
        return self._background.submit(call)

    def close(self) -> None:
        if self._background is not None:
            self._background.shutdown()
        if self._client is not None:
            self._client.close()


class StoreSession:
    """One request's use of the store. No method raises for what the store can't do."""

    def __init__(self, link: StoreLink, wanted: bool, priority: int = PRIORITY_NEUTRAL) -> None:
        self.link, self.layout = link, link.layout
        self.faults: Counter[str] = Counter()
        self.usable = wanted
        self._hint = None if priority == PRIORITY_NEUTRAL else HintFields(priority=priority)
        self._published_tokens: list[int] = []
        self._prepared: tuple[range, Future[StoredChunk | None]] | None = None

    def keys(self, tokens: list[int], cache_salt: str, public_tokens: int = 0) -> list[bytes]:
        """The keys of the full blocks of `tokens`; none when there is no store. `public_tokens` as in client/prompt_keys.py."""
        if not self.usable:
            return []
        try:
            namespace = self.link.connect()[1]
            # What has a salt is found by who knows it only: a router that knew the tokens alone would expect it everywhere.
            self._published_tokens = tokens if self.link.address.publish_tokens and not cache_salt else []
            step = self.layout.block_tokens
            return prompt_keys(namespace.root, tokens, step, cache_salt, public_tokens, namespace.hash)
        except MooncaskError as exc:
            self.fault(exc)
            self.usable = False  # without keys there is nothing to ask for
            return []

    def match(self, keys: list[bytes]) -> Hit:
        """The longest prefix of `keys` that is in the store."""
        if not self.usable or not keys:
            return NO_HIT
        try:
            client, namespace = self.link.connect()
            found = client.match(namespace, keys)
        except MooncaskError as exc:
            self.fault(exc)
            return NO_HIT
        return Hit(tuple(int(tier) for tier in found.tiers), tuple(found.seconds))

    def expect(self, keys: list[bytes], ttl_seconds: float) -> None:
        """Says that this process will store these blocks: who waits for one of them waits until then."""
        if not self.usable or not keys:
            return
        try:
            client, namespace = self.link.connect()
            client.expect(namespace, keys, ttl_seconds)
        except MooncaskError as exc:
            self.fault(exc)

    def tell_recomputed(self, key: bytes, rest: LeftOut) -> None:
        """Says which blocks of a hit are computed, from `key` on, and why: for the daemon's metrics and its `why`."""
        if not self.usable:
            return
        try:
            client, namespace = self.link.connect()
            client.recomputed(namespace, key, rest.blocks, Tier(rest.tier), rest.load_seconds, rest.compute_seconds)
        except MooncaskError as exc:
            self.fault(exc)

    def load(self, keys: list[bytes], buffer: KvBuffer, deadline_seconds: float) -> LoadOutcome:
        """Copies blocks into the buffer, from block 0 on, until one is missing, is no block of ours, or the time is over."""
        outcome, started = LoadOutcome(), time.perf_counter()
        window = max(1, WINDOW_BYTES // self.layout.block_bytes)
        while self.usable and outcome.blocks < len(keys):
            left = deadline_seconds - (time.perf_counter() - started)
            wanted = keys[outcome.blocks : outcome.blocks + window]
            if left <= 0 or self._load_window(wanted, buffer, outcome, left) < len(wanted):
                break
        outcome.seconds = time.perf_counter() - started
        return outcome

    def load_arriving(
        self, keys: list[bytes], buffer: KvBuffer, patience_seconds: float, wanted: Callable[[], bool]
    ) -> LoadOutcome:
        """As `load`, also of blocks that somebody is storing just now: the next few are waited for `patience_seconds` at
        most, as long as it is `wanted`."""
        outcome, started = LoadOutcome(), time.perf_counter()
        window, until = max(1, ARRIVING_BYTES // self.layout.block_bytes), started + patience_seconds
        while self.usable and outcome.blocks < len(keys) and wanted():
            some = keys[outcome.blocks : outcome.blocks + window]
            now = time.perf_counter()
            slice_seconds = min(WANTED_SECONDS, until - now)
            loaded = self._load_window(some, buffer, outcome, slice_seconds, wait=True)
            if loaded:
                until = time.perf_counter() + patience_seconds
            elif time.perf_counter() - now < slice_seconds / 2 or time.perf_counter() >= until:
                break  # nobody is storing it, or not soon enough
        outcome.seconds = time.perf_counter() - started
        return outcome

    def _load_window(
        self, keys: list[bytes], buffer: KvBuffer, outcome: LoadOutcome, seconds: float, wait: bool = False
    ) -> int:
        loaded = 0
        try:
            client, namespace = self.link.connect()
            with client.acquire(namespace, keys, deadline_seconds=seconds, wait=wait, hint=self._hint) as blocks:
                for block in blocks:
                    if block is None:
                        break
                    source = block.torch(self.layout.torch_dtype, self.layout.block_shape)
                    buffer.load_block(outcome.blocks, source)
                    outcome.blocks, loaded = outcome.blocks + 1, loaded + 1
                    outcome.bytes_by_tier[int(block.tier)] += block.size
        except MooncaskError as exc:
            self.fault(exc)
        return loaded

    def store(self, keys: list[bytes], indices: range, buffer: KvBuffer) -> int:
        """Stores blocks `indices` of the chain `keys` from the buffer; how many of them this published."""
        published, window = 0, max(1, WINDOW_BYTES // self.layout.block_bytes)
        for start in range(indices.start, indices.stop, window):
            chunk = self.begin_chunk(keys, range(start, min(start + window, indices.stop)), buffer)
            if chunk is not None:
                chunk.save_all()
                published += self.commit(chunk)
        return published

    def prepare_chunk(self, keys: list[bytes], indices: range, buffer: KvBuffer) -> None:
        """Begins to reserve places for blocks `indices`, for the next `begin_chunk`, which will ask for the same: what computes
        meanwhile need not wait for the daemon. Places that nobody asks for go back to it."""
        if self.usable and indices and keys:
            begun = self.link.in_background(lambda: self._reserved(keys, indices, buffer))
            self._prepared = indices, begun

    def begin_chunk(self, keys: list[bytes], indices: range, buffer: KvBuffer) -> StoredChunk | None:
        """Places for blocks `indices`; None when there are none to store or the store has no room."""
        prepared, self._prepared = self._prepared, None
        ready = None if prepared is None else prepared[1].result()
        if prepared is not None and prepared[0] == indices:
            return ready
        return self._reserved(keys, indices, buffer)

    def _reserved(self, keys: list[bytes], indices: range, buffer: KvBuffer) -> StoredChunk | None:
        if not self.usable or not indices or not keys:
            return None
        layout, namespace = self.layout, self.link.namespace
        assert namespace is not None  # there are keys
        wanted = [keys[index] for index in indices]
        parents = [keys[index - 1] if index else b"" for index in indices]
        try:
            reservations = self.link.connect()[0].reserve(
                namespace,
                wanted,
                [layout.block_bytes] * len(wanted),
                parents=parents,
                depths=list(indices),
                tokens=[layout.block_tokens] * len(wanted),
                layers=layout.layers,
                hint=self._hint,
            )
        except MooncaskError as exc:
            self.fault(exc)
            return None
        return StoredChunk(reservations, indices, buffer)

    def advance(self, chunk: StoredChunk, layer: int) -> None:
        """Stores one layer of the chunk's blocks and tells those who wait for them. It is copied even when the store has become
        unusable meanwhile, by another call's fault: a commit may still work then, and must find whole blocks."""
        chunk.save_layer(layer)
        if not self.usable:
            return
        try:
            chunk.tell(layer + 1)
        except MooncaskError as exc:
            self.fault(exc)

    def commit(self, chunk: StoredChunk) -> int:
        """Publishes the chunk's blocks; how many."""
        try:
            return sum(
                state in (CommitState.PUBLISHED, CommitState.DURABLE) for state in chunk.commit(self._published_tokens)
            )
        except MooncaskError as exc:
            self.fault(exc)
            return 0

    def fault(self, exc: MooncaskError) -> None:
        self.faults[type(exc).__name__] += 1
        log.warning("going on without the store: %s", exc)
        if isinstance(exc, DaemonUnavailable | DeadlineExceeded):
            self.usable = False
