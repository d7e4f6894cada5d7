"""What hit rate other memory or another policy would give: asks the ghost caches, and feeds them off everybody's path.

Which questions there are follows from the configuration. Without an NVMe tier: twice and half the DRAM, other policies
at the same size, and an NVMe tier of `ghosts.nvme` bytes. With one: the first two ask for what would be found *in DRAM*, and
twice the NVMe and the policies for what would be found at all.

Blocks of KV namespaces count, as matches ask for them; acquires do where their client never matches. What a client then
reads or puts is a use. Objects are not ghosts' business: they do not leave under pressure.

Not here: how a ghost works (`ghosts.py`), where the answers are shown (`metrics.py`, `insight/`).
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mooncask.client.control import WhatIf
from mooncask.daemon.config import Config
from mooncask.daemon.ghost_cache import Question
from mooncask.daemon.ghosts import Answer, Ghosts
from mooncask.daemon.insight.lookups import Lookup, LookupKind
from mooncask.daemon.namespace_door import NAMESPACES_MAX, block_tokens
from mooncask.daemon.quantities import format_size
from mooncask.tiers.namespace import Namespace

POLICIES = ("lru", "lfu", "s3fifo", "arc")
"""Those that are asked about where they are not the configured one: one of each kind. More would take memory and time."""
NVME_TIMES_DRAM = 8
"""Bytes of the NVMe tier that is asked about where there is none, when `ghosts.nvme` is 0."""
DELAY_SECONDS = 0.1
SLICE_SECONDS = 0.001
"""What one turn of the loop spends here."""
PUTS_MAX = 8192
"""Puts that wait; past that they are dropped and counted."""
PUT_WAIT_SECONDS = 1.0
"""Look-ups are told some time after they happened; a put waits so long for those that came before it."""
CLIENTS_MAX = 4096


class _Put(NamedTuple):
    seconds: float
    namespace: int
    key: bytes
    size: int

    def is_like(self, other: "_Put") -> bool:
        return self.namespace == other.namespace and self.size == other.size


class WhatIfs:
    """The daemon's ghosts. Belongs to the event loop's thread."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._texts: dict[str, str] = {}
        memory, everything = self._questions(config)
        self._memory = self._ghosts(config, memory) if memory else None
        self._all = self._ghosts(config, everything)
        self._puts: deque[_Put] = deque()
        self._matchers: set[bytes] = set()
        """Clients that have matched; all are forgotten when there are too many, and learned anew."""
        self._block_tokens: dict[int, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.puts_dropped = 0

    # --- news --------------------------------------------------------------------------------------------------------

    def put(self, namespace: Namespace, key: bytes, size: int) -> None:
        """A block was published. On the writer's path: takes a note."""
        if namespace.spec.kind != "kv":
            return
        if len(self._puts) >= PUTS_MAX:
            self.puts_dropped += 1
            return
        self._puts.append(_Put(self._clock(), namespace.id, key, size))
        self._schedule()

    def looked(self, lookups: Sequence[Lookup]) -> None:
        """An observer of look-ups."""
        for lookup in lookups:
            if self._puts:
                self._tell_puts(lookup.seconds)
            if lookup.kind is LookupKind.MATCH:
                self._tell_match(lookup)
            elif lookup.kind is LookupKind.ACQUIRE:
                self._tell_acquire(lookup)
        self._schedule()

    def _tell_match(self, lookup: Lookup) -> None:
        if lookup.client not in self._matchers:
            if len(self._matchers) >= CLIENTS_MAX:
                self._matchers.clear()
            self._matchers.add(lookup.client)
        self._tell_looked(lookup)

    def _tell_acquire(self, lookup: Lookup) -> None:
        namespace, keys, hits = lookup.namespace, lookup.keys, lookup.hits
        if lookup.client not in self._matchers:
            self._tell_looked(lookup)
        if hits and namespace.blocks and namespace.spec.kind == "kv":
            read = keys if hits == len(keys) else keys[:hits]
            self._use(namespace.id, read, namespace.stored_bytes // namespace.blocks)

    def _tell_looked(self, lookup: Lookup) -> None:
        namespace = lookup.namespace
        if namespace.spec.kind != "kv":
            return
        tokens = self._block_tokens.get(namespace.id)
        if tokens is None:
            if len(self._block_tokens) >= NAMESPACES_MAX:
                self._block_tokens.clear()
            tokens = self._block_tokens[namespace.id] = block_tokens(namespace.spec.family) or 1
        if self._memory is not None:
            self._memory.looked(namespace.id, lookup.keys, lookup.memory_hits, tokens)
        self._all.looked(namespace.id, lookup.keys, lookup.hits, tokens)

    def _tell_puts(self, until_seconds: float) -> None:
        """Those before that time, neighbours of one namespace and size together."""
        puts = self._puts
        while puts and puts[0].seconds < until_seconds:
            first = puts.popleft()
            keys = [first.key]
            while puts and puts[0].seconds < until_seconds and first.is_like(puts[0]):
                keys.append(puts.popleft().key)
            self._use(first.namespace, keys, first.size)

    def _use(self, namespace: int, keys: Sequence[bytes], size: int) -> None:
        if self._memory is not None:
            self._memory.used(namespace, keys, size)
        self._all.used(namespace, keys, size)

    # --- work --------------------------------------------------------------------------------------------------------

    def _schedule(self, delay_seconds: float = DELAY_SECONDS) -> None:
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(delay_seconds, self._work)

    def _work(self) -> None:
        self._timer = None
        self._tell_puts(self._clock() - PUT_WAIT_SECONDS)
        for ghosts in self._each():
            ghosts.work(SLICE_SECONDS)
        if any(ghosts.busy for ghosts in self._each()):
            self._schedule(0.0)
        elif self._puts:
            self._schedule()

    def _each(self) -> Iterable[Ghosts]:
        return [self._all] if self._memory is None else [self._memory, self._all]

    def close(self) -> None:
        """No timer is left."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    # --- answers -----------------------------------------------------------------------------------------------------

    @property
    def dropped(self) -> int:
        """News that the ghosts were not told of, since too much waited."""
        return self.puts_dropped + sum(ghosts.dropped for ghosts in self._each())

    @property
    def rate(self) -> float:
        """Share of blocks that is sampled, of the ghosts that see least."""
        return min(ghosts.rate for ghosts in self._each())

    def answers(self) -> list[WhatIf]:
        """For the overview page."""
        return [self._answer(answer) for ghosts in self._each() for answer in ghosts.answers()]

    def _answer(self, answer: Answer) -> WhatIf:
        question = answer.question
        return WhatIf(
            name=question.name,
            text=self._texts[question.name],
            capacity_bytes=question.capacity_bytes,
            policy=question.policy,
            hit_rate=answer.hit_rate,
            sampled_accesses=answer.sampled_accesses,
        )

    # --- questions ---------------------------------------------------------------------------------------------------

    def _ghosts(self, config: Config, questions: Sequence[Question]) -> Ghosts:
        settings = config.ghosts
        return Ghosts(questions[0], questions[1:], self._clock, settings.window, settings.cpu_share)

    def _questions(self, config: Config) -> tuple[list[Question], list[Question]]:
        """About DRAM, where it is not the last tier, and about all that is here; the configured size first."""
        dram, policy = config.dram.capacity, config.dram.policy
        sizes = [
            Question("dram", dram, policy),
            self._ask("dram_x2", 2 * dram, policy, "DRAM"),
            self._ask("dram_half", dram // 2, policy, "DRAM"),
        ]
        if not config.nvme.path:
            added = config.ghosts.nvme or NVME_TIMES_DRAM * dram
            return [], [*sizes, *self._other_policies(dram, policy), self._ask("nvme_added", added, policy, "NVMe")]
        nvme, below = config.nvme.capacity, config.nvme.policy
        return sizes, [
            Question("nvme", nvme, below),
            self._ask("nvme_x2", 2 * nvme, below, "NVMe"),
            *self._other_policies(nvme, below),
        ]

    def _other_policies(self, capacity_bytes: int, policy: str) -> list[Question]:
        others = [name for name in POLICIES if name != policy]
        for name in others:
            self._texts[f"policy_{name}"] = f"policy {name} instead of {policy}"
        return [Question(f"policy_{name}", capacity_bytes, name) for name in others]

    def _ask(self, name: str, capacity_bytes: int, policy: str, tier: str) -> Question:
        self._texts[name] = f"{format_size(capacity_bytes)} of {tier}"
        return Question(name, capacity_bytes, policy)
