"""Ghost caches: what the hit rate would be with other memory or another policy. Keys only, no payload, no I/O.

A ghost cache is a sampled shadow after SHARDS (Waldspurger and others, FAST'15): a block is in the sample when its key, a
digest, is below a limit, so that all its uses are or none is; a cache of C bytes is then one of rate x C bytes under the very
policy object that a tier would have. Leaf-first as the tiers are: a block leaves only when no sampled one continues it, so
a sampled block that is here stands for its whole prefix, and what is sampled of a chain says what the chain would hit.

A `Ghosts` has one cache as the daemon is configured beside those that ask "what if". Both see the same sample, so the
answer is the daemon's own hit rate, counted exactly, plus the difference of the two: most of what a sample does wrong is in
both and falls out.

    live .40        same ghost .37, twice the DRAM .45        what if: .40 + .45 - .37 = .48

Hit rates are of tokens (blocks where the family does not say) in contiguous prefixes, over the last `window_seconds`.

Bounds: `SAMPLE_BLOCKS` for the configured size and `ENTRIES_MAX` over all caches of a `Ghosts`; when they are exceeded, or
when sampled blocks take more than `cpu_share` of the time, the rate is halved and what is above the new limit forgotten, bit
by bit. `looked` and `used` only pick what is sampled and append it to a bounded list; `work` does the rest.

Not here: one cache (`ghost_cache.py`), when `work` is called and what is asked (`what_if.py`). Not known here: deletes, times to live, pins and leases.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from mooncask.daemon.ghost_cache import GhostCache, Question, Windowed
from mooncask.tiers.block import Access

SAMPLE_BLOCKS = 512
"""Blocks that the ghost of the configured size holds in the sample, about."""
ENTRIES_MAX = 12_288
"""Blocks in all caches of one `Ghosts` together; about 400 bytes each with what policies remember."""
PENDING_MAX = 2048
"""Events that wait for `work`; more are dropped and counted. Each holds the sampled keys of one request."""
PARENTS_MAX = 4096
"""Sampled blocks whose sampled predecessor is remembered from the look-up until they are put."""
SPENDING_SECONDS = 10.0
"""How long the time spent is added up before it is judged."""
ENOUGH_ACCESSES = 200
"""Below so many sampled look-ups of blocks within the window nothing is said."""
RISE_SHARE = 0.25
"""The rate is doubled again, up to what it was chosen as, when half a window took less than this part of `cpu_share`. Until
the caches have filled, answers then lean towards "no difference"."""
LEAST_BLOCKS = 32
"""A sample that holds fewer blocks of the configured size says nothing: what the processor can spare is too little."""
RATE_MIN = 1 / (1 << 20)

_PLACE_BITS, _REST_BITS = 32, 30
_ANYTHING = b"\xff" * 256


class Answer(NamedTuple):
    """`hit_rate` is -1 where not enough was asked."""

    question: Question
    hit_rate: float
    sampled_accesses: int


class _Looked(NamedTuple):
    """The sampled blocks of a chain that was looked up; `tokens` is a block's."""

    namespace: int
    keys: Sequence[bytes]
    tokens: int


class _Used(NamedTuple):
    """The sampled blocks of those that were read or written, in the order of their chain; each has about `size` bytes."""

    namespace: int
    keys: Sequence[bytes]
    size: int


class Ghosts:
    """The configured cache and what else might be, all fed with the same sample. Everything belongs to one thread."""

    def __init__(
        self,
        same: Question,
        questions: Sequence[Question],
        clock: Callable[[], float],
        window_seconds: float = 600.0,
        cpu_share: float = 0.005,
    ) -> None:
        self._clock = clock
        self._window_seconds = window_seconds
        self._cpu_share = cpu_share
        self._questions = (same, *questions)
        self._rate = 0.0
        """0: not chosen yet, since no block's size is known."""
        self._limit = b""
        self._block_bytes = 1
        self._caches: list[GhostCache] = []
        self._asked_tokens, self._hit_tokens, self._expected_tokens = Windowed(), Windowed(), Windowed()
        self._sampled_accesses = Windowed()
        self._parents: OrderedDict[int, int] = OrderedDict()
        self._pending: deque[_Looked | _Used] = deque()
        self._rebuild: Iterator[None] | None = None
        self._turned = self._judged = clock()
        self._spent = self._spent_in_half = 0.0
        self._rate_max = 1.0
        self.dropped = 0

    @property
    def rate(self) -> float:
        """Share of all blocks that is sampled; 0 before the first block came."""
        return self._rate

    @property
    def entries(self) -> int:
        return sum(len(cache.sizes) for cache in self._caches)

    @property
    def busy(self) -> bool:
        """Whether `work` has something to do."""
        return bool(self._pending) or self._rebuild is not None

    def looked(self, namespace: int, keys: Sequence[bytes], hits: int, tokens: int = 1) -> None:
        """A chain was looked up; its first `hits` blocks were found in what these ghosts stand for. `tokens` is a block's."""
        asked = tokens * len(keys)
        self._asked_tokens.now += asked
        self._hit_tokens.now += tokens * hits
        self._expected_tokens.now += asked * self._rate
        limit = self._limit
        if sampled := [key for key in keys if key < limit]:
            self._wait(_Looked(namespace, sampled, tokens))

    def used(self, namespace: int, keys: Sequence[bytes], size: int) -> None:
        """Blocks were read or written, in the order of their chain; each has about `size` bytes."""
        if not self._rate:
            self._start(size)
        limit = self._limit
        if sampled := [key for key in keys if key < limit]:
            self._wait(_Used(namespace, sampled, size))

    def _wait(self, event: _Looked | _Used) -> None:
        if len(self._pending) < PENDING_MAX:
            self._pending.append(event)
        else:
            self.dropped += 1

    def work(self, seconds: float) -> None:
        """Works off events for about that long."""
        began = now = self._clock()
        self._turn(began)
        pending = self._pending
        while now - began < seconds:
            before = now
            if self._rebuild is not None:
                self._go_on(self._rebuild)
                now = self._clock()
            elif pending:
                event = pending.popleft()
                if isinstance(event, _Used):
                    self._use(event, now)
                else:
                    self._look(event)
                now = self._clock()
                self._spent += now - before
            else:
                break
        self._judge(now)

    def answers(self) -> list[Answer]:
        """What each question's hit rate is, in the order they were asked."""
        if not self._caches:
            return [Answer(question, -1.0, 0) for question in self._questions[1:]]
        accesses = int(self._sampled_accesses.total)
        too_small = self._rate < 1 and self._caches[0].capacity < LEAST_BLOCKS * self._block_bytes
        known = accesses >= ENOUGH_ACCESSES and not too_small
        return [
            Answer(cache.question, self._estimate(cache) if known else -1.0, accesses) for cache in self._caches[1:]
        ]

    def _estimate(self, cache: GhostCache) -> float:
        """Over the tokens expected in the sample, not over those in it: a block that all ask for may or may not be there."""
        more = (cache.hit_tokens.total - self._caches[0].hit_tokens.total) / self._expected_tokens.total
        return min(1.0, max(0.0, self._hit_tokens.total / self._asked_tokens.total + more))

    # --- events ------------------------------------------------------------------------------------------------------

    def _look(self, event: _Looked) -> None:
        limit = self._limit  # lower, perhaps, than when the event came
        ids = [_id(event.namespace, key) for key in event.keys if key < limit]
        for cache in self._caches:
            cache.hit_tokens.now += event.tokens * cache.prefix(ids)
        self._sampled_accesses.now += len(ids)
        for above, below in pairwise(ids):
            self._parents[below] = above
            self._parents.move_to_end(below)
        while len(self._parents) > PARENTS_MAX:
            self._parents.popitem(last=False)

    def _use(self, event: _Used, now: float) -> None:
        limit, parents = self._limit, self._parents
        ids = [_id(event.namespace, key) for key in event.keys if key < limit]
        accesses = [Access(each, parents.get(each), 0, event.size, now) for each in ids]
        for cache in self._caches:
            cache.use(accesses)
        if self.entries > ENTRIES_MAX and self._rebuild is None:
            self._rate_max = self._rate / 2  # the blocks are smaller than those it was chosen by
            self._halve(now)

    # --- the rate ----------------------------------------------------------------------------------------------------

    def _start(self, block_bytes: int) -> None:
        self._block_bytes = max(1, block_bytes)
        self._rate_max = min(1.0, SAMPLE_BLOCKS * self._block_bytes / max(1, self._questions[0].capacity_bytes))
        self._set_rate(self._rate_max)
        self._caches = [GhostCache(question, self._rate) for question in self._questions]

    def _set_rate(self, rate: float) -> None:
        self._rate = max(RATE_MIN, rate)
        limit = int(self._rate * (1 << _PLACE_BITS))
        self._limit = limit.to_bytes(_PLACE_BITS // 8, "big") if limit < 1 << _PLACE_BITS else _ANYTHING

    def _judge(self, now: float) -> None:
        """Halve the rate when too much time was spent."""
        if now - self._judged < SPENDING_SECONDS:
            return
        too_much = self._spent > self._cpu_share * (now - self._judged)
        self._spent_in_half += self._spent
        self._judged, self._spent = now, 0.0
        if too_much:
            self._halve(now)

    def _halve(self, now: float) -> None:
        if self._rebuild is None and self._rate > RATE_MIN:
            self._set_rate(self._rate / 2)
            self._rebuild = self._rebuilt(now)

    def _rebuilt(self, now: float) -> Iterator[None]:
        """The caches at the new rate, one after the other, without what is above its limit. Events wait meanwhile."""
        limit = int(self._rate * (1 << _PLACE_BITS))
        for number, cache in enumerate(self._caches):
            new = GhostCache(cache.question, self._rate)
            yield from cache.refill(new, lambda key: key >> _REST_BITS < limit, now)
            self._caches[number] = new

    def _go_on(self, rebuild: Iterator[None]) -> None:
        for _ in rebuild:
            return
        self._rebuild = None

    def _turn(self, now: float) -> None:
        if now - self._turned >= self._window_seconds / 2:
            spare = self._spent_in_half < RISE_SHARE * self._cpu_share * (now - self._turned)
            if spare and self._rebuild is None and 0 < self._rate < self._rate_max:
                self._set_rate(min(self._rate_max, 2 * self._rate))
                self._rebuild = self._rebuilt(now)
            self._turned, self._spent_in_half = now, 0.0
            ours = (self._asked_tokens, self._hit_tokens, self._expected_tokens, self._sampled_accesses)
            for each in (*ours, *(cache.hit_tokens for cache in self._caches)):
                each.turn()


def _id(namespace: int, key: bytes) -> int:
    """A number for a block: where its key stands among all keys, then bits that tell blocks apart."""
    place = int.from_bytes(key[:4].ljust(4, b"\0"), "big")
    return place << _REST_BITS | (hash(key) ^ namespace) & ((1 << _REST_BITS) - 1)
