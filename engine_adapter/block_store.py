"""One namespace of the store for an engine that knows hits and misses only: whatever fails is a miss, counted and said.

Every call ends by its deadline. When the daemon is gone, calls miss at once for a while (`patience.py`) and then try
again; it connects by itself, the first time too. Blocks are copied from and to the engine's own memory (`spans.py`), some
tens of MiB at a time, so that a long prefix does not hold more of DRAM than the daemon lets one process hold.
Not here: which family an engine has, what its keys are, how its memory is laid out.
"""

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from mooncask.client.dial import Target
from mooncask.client.leases import Bytes
from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.operations import Page
from mooncask.client.socket_path import default_socket_path
from mooncask.engine_adapter.patience import Patience
from mooncask.engine_adapter.spans import Spans, gather, scatter, total
from mooncask.errors import LengthMismatch, MooncaskError

log = logging.getLogger(__name__)

WINDOW_BYTES = 64 << 20
"""Bytes leased or reserved at a time."""
WINDOW_BLOCKS = 256
SAY_AGAIN_SECONDS = 30.0
"""The same kind of fault is logged this often at most; it is counted each time."""

T = TypeVar("T")
Take = Callable[[int, Bytes], bool]
"""Called with (index of the key, its block's bytes)."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where the store is and how long one call may take. An empty `socket` is where this user's daemon listens."""

    socket: str = ""
    deadline_seconds: float = 2.0
    mode: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where new blocks stand in their chain: the block before the first, how many there are before it, tokens a block.

    Unknown is empty or None: then the first block has no parent here and none has a depth.
    """

    parent: bytes = b""
    depth: int | None = None
    tokens: int = 0
    chained: bool = True
    """Whether each block follows on the one before it."""


NO_PAGE = Page([], more=False)
UNKNOWN_PLACE = Place(chained=False)


class BlockStore:
    """Any thread may call it. No method raises for what the store can't do; `counts` says what was done and what failed."""

    def __init__(self, address: StoreAddress, name: str, family: Mapping[str, str], shard: str = "") -> None:
        """Does not connect yet. `name` is what the daemon's log calls this engine."""
        self.address, self.family, self.shard = address, dict(family), shard
        self.counts: Counter[str] = Counter()
        """Blocks `asked`, `found`, `loaded`, `stored`, and faults by the name of their class."""
        target = Target(address.socket or default_socket_path(), name)
        self._client = LocalClient(target, address.deadline_seconds)
        self._namespace: NamespaceHandle | None = None
        self._patience = Patience()
        self._counting = threading.Lock()
        self._said: dict[str, float] = {}

    @property
    def namespace_name(self) -> str:
        """As the daemon calls it; empty before it was reached."""
        return self._namespace.name if self._namespace is not None else ""

    # --- questions ---

    def prefix(self, keys: Sequence[bytes], seconds: float | None = None) -> int:
        """How many blocks from the first on are here."""
        if not keys:
            return 0
        end = self._end(seconds)
        found = self._guard(lambda ns: len(self._client.match(ns, keys, _left(end))), 0)
        self._count(asked=len(keys), found=found)
        return found

    def present(self, keys: Sequence[bytes], seconds: float | None = None) -> list[bool]:
        """Which of them are here."""
        if not keys:
            return []
        end = self._end(seconds)
        nothing = [False] * len(keys)
        found = self._guard(lambda ns: [stat is not None for stat in self._client.stat(ns, keys, _left(end))], nothing)
        self._count(asked=len(keys), found=sum(found))
        return found

    # --- bytes ---

    def read(self, keys: Sequence[bytes], targets: Sequence[Spans], seconds: float | None = None) -> list[bool]:
        """Copies blocks to where they are wanted. False where one is not here in time or is of another length; its place
        is untouched then."""

        def take(index: int, data: Bytes) -> bool:
            if data.nbytes != total(targets[index]):
                self._fault(LengthMismatch(keys[index].hex(), data.nbytes, total(targets[index])))
                return False
            scatter(data, targets[index])
            return True

        return self.visit(keys, take, [total(spans) for spans in targets], seconds)

    def visit(
        self, keys: Sequence[bytes], take: Take, sizes: Sequence[int], seconds: float | None = None
    ) -> list[bool]:
        """Shows blocks in place to `take`, which copies what it wants and says whether it did; the bytes are read-only and
        valid in that call only. `sizes` are what the blocks are expected to have. False for those that are not here in
        time."""
        end = self._end(seconds)
        taken: list[bool] = []
        for start, stop in _windows(sizes):
            visit = partial(self._visit, keys=keys, cut=slice(start, stop), take=take, end=end)
            taken += self._guard(visit, [False] * (stop - start))
        self._count(loaded=sum(taken))
        return taken

    def _visit(
        self, namespace: NamespaceHandle, keys: Sequence[bytes], cut: slice, take: Take, end: float
    ) -> list[bool]:
        with self._client.acquire(namespace, keys[cut], _left(end)) as blocks:
            numbers = range(*cut.indices(len(keys)))
            return [block is not None and take(i, block.numpy()) for i, block in zip(numbers, blocks, strict=True)]

    def write(
        self,
        keys: Sequence[bytes],
        sources: Sequence[Spans],
        place: Place = UNKNOWN_PLACE,
        seconds: float | None = None,
    ) -> list[bool]:
        """Stores blocks; True where the store has one now. A block that is here already is not copied again, nor is one that
        is named twice."""
        first = {key: i for i, key in reversed(list(enumerate(keys)))}
        if len(first) < len(keys):
            each = sorted(first.values())
            alone = replace(place, chained=False, depth=None)
            stored = self.write([keys[i] for i in each], [sources[i] for i in each], alone, seconds)
            by_key = dict(zip((keys[i] for i in each), stored, strict=True))
            return [by_key[key] for key in keys]
        return self._write_all(keys, sources, place, self._end(seconds))

    def _write_all(self, keys: Sequence[bytes], sources: Sequence[Spans], place: Place, end: float) -> list[bool]:
        stored: list[bool] = []
        for start, stop in _windows([total(spans) for spans in sources]):
            write = partial(self._write, keys=keys, sources=sources, place=place, cut=slice(start, stop), end=end)
            stored += self._guard(write, [False] * (stop - start))
        self._count(stored=sum(stored))
        return stored

    def _write(
        self,
        namespace: NamespaceHandle,
        keys: Sequence[bytes],
        sources: Sequence[Spans],
        place: Place,
        cut: slice,
        end: float,
    ) -> list[bool]:
        part = keys[cut]
        numbers = range(*cut.indices(len(keys)))
        parents = [keys[i - 1] if i else place.parent for i in numbers] if place.chained else []
        depths = [place.depth + i for i in numbers] if place.depth is not None else []
        with self._client.reserve(
            namespace,
            part,
            [total(spans) for spans in sources[cut]],
            parents=parents,
            depths=depths,
            tokens=[place.tokens] * len(part) if place.tokens else [],
            deadline_seconds=_left(end),
        ) as slots:
            for slot, spans in zip(slots, sources[cut], strict=True):
                if slot is not None:
                    gather(spans, slot.numpy())
            slots.commit(deadline_seconds=_left(end))
        return [True] * len(part)

    # --- ending ---

    def remove(self, keys: Sequence[bytes], seconds: float | None = None) -> int:
        """Deletes blocks; how many there were."""
        end = self._end(seconds)
        return self._guard(lambda ns: self._client.evict(ns, keys, _left(end)), 0) if keys else 0

    def answers(self) -> bool:
        """Whether the daemon is there and opens this namespace."""
        return self._guard(lambda ns: self._client.status(self.address.deadline_seconds) is not None, False)

    def all_keys(self, seconds: float | None = None) -> list[bytes]:
        """Every block's key, as far as they can be listed in time."""
        return [key for page in self._pages(self._end(seconds)) for key in page]

    def clear(self, seconds: float) -> bool:
        """Deletes every block of the namespace; False when that was not done in time."""
        end = self._end(seconds)
        for page in self._pages(end):
            self.remove(page, _left(end))
        return self._guard(lambda ns: not self._page(ns, b"", end).blocks, False)

    def _pages(self, end: float) -> Iterator[list[bytes]]:
        after, more = b"", True
        while more and time.monotonic() < end:
            page = self._guard(partial(self._page, after=after, end=end), NO_PAGE)
            keys = [block.key for block in page.blocks]
            yield keys
            after, more = keys[-1] if keys else after, page.more

    def _page(self, namespace: NamespaceHandle, after: bytes, end: float) -> Page:
        return self._client.list_blocks(namespace, after=after, deadline_seconds=_left(end))

    def close(self) -> None:
        self._client.close()

    # --- faults ---

    def _guard(self, ask: Callable[[NamespaceHandle], T], miss: T) -> T:
        """The answer, or `miss` for whatever went wrong."""
        if not self._patience.may_ask(time.monotonic()):
            self._count(not_asked=1)
            return miss
        try:
            answer = ask(self._open())
        except MooncaskError as exc:
            self._fault(exc)
            return miss
        self._patience.worked()
        return answer

    def _open(self) -> NamespaceHandle:
        if self._namespace is None:
            self._namespace = self._client.open_namespace(family=self.family, shard=self.shard, mode=self.address.mode)
            log.info("mooncask: namespace %s at %s", self._namespace.name, self._client.target.path)
        return self._namespace

    def _fault(self, error: MooncaskError) -> None:
        kind, now = type(error).__name__, time.monotonic()
        self._patience.failed(error, now)
        self._count(**{kind: 1})
        if now - self._said.get(kind, -SAY_AGAIN_SECONDS) >= SAY_AGAIN_SECONDS:
            self._said[kind] = now
            log.warning("mooncask: going on without the store: %s (%d so far)", error, self.counts[kind])

    def _count(self, **numbers: int) -> None:
        with self._counting:
            self.counts.update(numbers)

    def _end(self, seconds: float | None) -> float:
        return time.monotonic() + (self.address.deadline_seconds if seconds is None else seconds)


def engine_name(engine: str) -> str:
    """What the daemon's log calls this process."""
    return f"{engine} {os.getpid()}"


def _left(end: float) -> float:
    return max(0.0, end - time.monotonic())


def _windows(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """[start, stop) of parts of at most WINDOW_BYTES and WINDOW_BLOCKS; a single larger block is a part."""
    parts: list[tuple[int, int]] = []
    start = size = 0
    for i, one in enumerate(sizes):
        if i > start and (size + one > WINDOW_BYTES or i - start >= WINDOW_BLOCKS):
            parts.append((start, i))
            start, size = i, 0
        size += one
    if len(sizes) > start:
        parts.append((start, len(sizes)))
    return parts
