"""The DRAM tier through the local client: reading in place, copying out, writing, matching chains."""

import time
from collections.abc import Mapping

import numpy as np

from mooncask.client.family import Family
from mooncask.client.hashing import chain
from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.tools.bench.counterpart import Counterpart
from mooncask.tools.bench.memory_limits import COPY, COPY_OUT, COPY_SHARED, Bytes, Copies, blocks_of
from mooncask.tools.bench.plan import BlockPlan, Plan
from mooncask.tools.bench.result import LIMIT, STORE, Findings, Measure, beside, measured
from mooncask.tools.bench.samples import Samples, take_turns, timed
from mooncask.tools.bench.targets import GET_COPY, GET_IN_PLACE, MATCH, PUT, judge_measure

RELEASE = "release"
ECHO = "empty round trip of a bare socket"
SMALLEST_CALL = "smallest call (match of 1 block)"
FAMILY = Family(model="bench", block_tokens="16")
CHAIN_BLOCKS, CHAIN_BLOCK_BYTES = 256, 4096


class Memory:
    """Buffers that all block sizes share: `source` is written to the store, `private` is read into, `shared` is a memfd."""

    def __init__(self, source: Bytes, private: Bytes, shared: Bytes) -> None:
        self.source, self.private, self.shared = source, private, shared


class BlockRounds:
    """Rounds over one block size. The working set is stored at the start and forgotten by `forget`."""

    def __init__(self, client: LocalClient, ns: NamespaceHandle, plan: BlockPlan, batch: int, memory: Memory) -> None:
        self._client, self._ns, self._plan, self._batch, self._memory = client, ns, plan, batch, memory
        for i in range(plan.set_batches):
            client.put(ns, self.keys(i), self._payloads(i))

    def keys(self, i: int) -> list[bytes]:
        return self._named("set", i % self._plan.set_batches)

    def get_in_place(self, i: int) -> Mapping[str, float]:
        keys = self.keys(i)
        with timed() as acquire:
            blocks = self._client.acquire(self._ns, keys)
            views = [block.memory for block in blocks if block is not None]
        assert len(views) == len(keys), "the working set left DRAM"
        with timed() as release:
            views.clear()
            blocks.close()
        return {GET_IN_PLACE: acquire.seconds, RELEASE: release.seconds}

    def get_copy(self, i: int) -> Mapping[str, float]:
        keys, targets = self.keys(i), blocks_of(self._memory.private, self._plan.block_bytes, self._batch, i)
        buffers = [target.data for target in targets]
        with timed() as watch:
            found = self._client.get_into(self._ns, keys, buffers)
        assert all(found), "the working set left DRAM"
        return {GET_COPY: watch.seconds}

    def put(self, i: int) -> Mapping[str, float]:
        """New blocks each round; they are forgotten again, uncounted, so that the arena stays half empty."""
        keys, payloads = self._named("put", i), self._payloads(i)
        with timed() as watch:
            self._client.put(self._ns, keys, payloads)
        self._client.evict(self._ns, keys)
        return {PUT: watch.seconds}

    def check(self) -> None:
        """That what the last `get_copy` brought is what was stored: a fast answer with wrong bytes is no answer."""
        self.get_copy(0)
        got = blocks_of(self._memory.private, self._plan.block_bytes, self._batch, 0)
        assert all(np.array_equal(a, b) for a, b in zip(got, self._payloads(0), strict=True)), "wrong bytes"

    def forget(self) -> None:
        for i in range(self._plan.set_batches):
            self._client.evict(self._ns, self.keys(i))

    def _payloads(self, i: int) -> list[Bytes]:
        return blocks_of(self._memory.source, self._plan.block_bytes, self._batch, i)

    def _named(self, what: str, i: int) -> list[bytes]:
        return [f"{what}-{self._plan.block_bytes}-{i}-{j}".encode() for j in range(self._batch)]


def measure_blocks(client: LocalClient, plan: Plan, block: BlockPlan, memory: Memory, findings: Findings) -> None:
    """All memory measures of one block size, each beside its limit."""
    ns = client.open_namespace("bench-memory", family=FAMILY, mode="memory")
    rounds = BlockRounds(client, ns, block, plan.batch, memory)
    copies = Copies(memory.source, memory.private, memory.shared, block.block_bytes, plan.batch)
    with Counterpart.over_unix() as counterpart:
        views = take_turns([rounds.get_in_place, lambda i: _echo(counterpart)], block.view_rounds)
    limits = [copies.private, copies.into_shared, copies.out_of_shared]
    moves = take_turns([rounds.get_copy, rounds.put, *limits], block.copy_rounds)
    rounds.check()
    rounds.forget()
    findings.measures += _views(views, block.block_bytes, plan.batch) + _moves(moves, block.block_bytes, plan.batch)


def _views(found: dict[str, Samples], size: int, batch: int) -> list[Measure]:
    echo = measured(LIMIT, ECHO, found[ECHO], size, batch, moves_bytes=False)
    get = measured(STORE, GET_IN_PLACE, found[GET_IN_PLACE], size, batch, moves_bytes=False)
    return [
        judge_measure(beside(get, echo)),
        measured(STORE, RELEASE, found[RELEASE], size, batch, moves_bytes=False),
        echo,
    ]


def _moves(found: dict[str, Samples], size: int, batch: int) -> list[Measure]:
    copy = measured(LIMIT, COPY, found[COPY], size, batch)
    others = [beside(measured(LIMIT, name, found[name], size, batch), copy) for name in (COPY_SHARED, COPY_OUT)]
    ours = [measured(STORE, name, found[name], size, batch) for name in (GET_COPY, PUT)]
    return [*(judge_measure(beside(measure, copy)) for measure in ours), copy, *others]


def measure_calls(client: LocalClient, plan: Plan, findings: Findings) -> None:
    """Calls that move no payload: a chain of 256 blocks matched, the smallest call, and a bare socket's round trip."""
    ns = client.open_namespace("bench-chain", family=FAMILY, mode="memory")
    keys = chain(ns.root(), range(16 * CHAIN_BLOCKS), 16)
    payload = memoryview(bytes(CHAIN_BLOCK_BYTES))
    client.put(ns, keys, [payload] * CHAIN_BLOCKS, parents=[b"", *keys[:-1]], depths=list(range(CHAIN_BLOCKS)))

    def match(i: int) -> Mapping[str, float]:
        with timed() as watch:
            found = client.match(ns, keys)
        assert len(found) == CHAIN_BLOCKS, "the chain left DRAM"
        return {MATCH: watch.seconds}

    def smallest(i: int) -> Mapping[str, float]:
        with timed() as watch:
            client.match(ns, keys[:1])
        return {SMALLEST_CALL: watch.seconds}

    with Counterpart.over_unix() as counterpart:
        found = take_turns([match, smallest, lambda i: _echo(counterpart)], plan.match_rounds)
    echo = measured(LIMIT, ECHO, found[ECHO], 0, 1, moves_bytes=False)
    ours = [measured(STORE, name, found[name], 0, 1, moves_bytes=False) for name in (MATCH, SMALLEST_CALL)]
    findings.measures += [*(judge_measure(beside(measure, echo)) for measure in ours), echo]


def _echo(counterpart: Counterpart) -> Mapping[str, float]:
    with timed() as watch:
        counterpart.echo()
    return {ECHO: watch.seconds}


def wait_until_populated(client: LocalClient, seconds_max: float = 120.0) -> float:
    """Seconds until the whole arena can be used; a measure taken before would have to fault pages in."""
    start = time.monotonic()
    while any(tier.state == "populating" for tier in client.status().tiers):
        assert time.monotonic() - start < seconds_max, "the arena is not populated yet"
        time.sleep(0.05)
    return time.monotonic() - start
