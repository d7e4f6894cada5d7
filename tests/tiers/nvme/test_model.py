"""The NVMe tier against a dict: puts, deletes, evictions, faults, restarts, crashes and rebuilds in any order.

The oracle knows seeds and sizes only; payloads are made anew from them for each comparison.
"""

import asyncio
import errno
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from nvme_doubles import FaultyFiles, SmallStore, config, payload_of

from mooncask.errors import TierDegraded
from mooncask.tiers.nvme import NvmeConfig
from mooncask.tiers.nvme.record import record_length

Result = TypeVar("Result")
KIB = 1 << 10
KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
SIZES = st.sampled_from([1, 4096, 5000, 40 * KIB, 100 * KIB, 180 * KIB])


class NvmeMachine(RuleBasedStateMachine):
    """`blocks` is what must be there; `evicted` what may come back after a crash or a rebuild."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="mooncask-nvme-model-"))
        self.blocks: dict[bytes, tuple[int, int]] = {}
        self.evicted: dict[bytes, set[tuple[int, int]]] = {}
        self.seed = 0

    def run(self, call: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(call)

    def config(self, folder: Path) -> NvmeConfig:
        return config(folder, 9 * 256 * KIB, 256 * KIB)

    @initialize()
    def start(self) -> None:
        self.files = FaultyFiles()
        self.store = self.run(SmallStore().open(self.config(self.folder / "nvme"), self.files))

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()
        shutil.rmtree(self.folder)

    # --- rules ---

    def next_seed(self) -> int:
        self.seed += 1
        return self.seed

    async def make_room(self, size: int) -> None:
        """What a store does: wait for the reclaimer, evict if that does not help."""
        while (extent := self.store.tier.reserve(size)) is None:
            if not await self.store.tier.room(size):
                assert self.blocks, "no room in a tier without blocks"
                self.forget(next(iter(self.blocks)))
        self.store.tier.free(extent)

    def forget(self, key: bytes) -> None:
        """Called with the loop running, as everything of a tier is."""
        self.evicted.setdefault(key, set()).add(self.blocks.pop(key))
        self.store.evict(key)

    async def write(self, key: bytes, size: int) -> bool:
        """Whether the put was acknowledged."""
        seed = self.next_seed()
        await self.make_room(size)
        try:
            await self.store.put(key, size, seed)
        except TierDegraded:
            return False
        if key in self.blocks:
            self.evicted.setdefault(key, set()).add(self.blocks[key])
        self.blocks[key] = (seed, size)
        return True

    @rule(key=KEYS, size=SIZES)
    def put(self, key: bytes, size: int) -> None:
        assert self.run(self.write(key, size))

    @rule(key=KEYS, size=SIZES, fault=st.sampled_from(["fdatasync", "pwritev"]))
    def put_on_a_failing_disk(self, key: bytes, size: int, fault: str) -> None:
        """It may fail or, when a background write met the fault, succeed; what it says is what counts."""
        self.files.fail(fault, errno.EIO, times=1)
        self.run(self.write(key, size))
        self.files.heal()
        if self.store.tier.state != "ok" or self.fenced() > 1:
            self.restart()  # fenced segments are not reclaimed before a restart

    def fenced(self) -> int:
        return sum(bool(segment.fault) or segment.state.name == "FENCED" for segment in self.store.tier._table)

    @rule(key=KEYS, size=SIZES, pauses=st.integers(0, 6))
    def put_that_is_cancelled(self, key: bytes, size: int, pauses: int) -> None:
        async def cancelled() -> bool:
            await self.make_room(size)
            task = asyncio.ensure_future(self.store.put(key, size, seed))
            for _ in range(pauses):
                await asyncio.sleep(0.0003)
            task.cancel()
            [outcome] = await asyncio.gather(task, return_exceptions=True)
            return not isinstance(outcome, BaseException)

        seed = self.next_seed()
        if self.run(cancelled()):
            if key in self.blocks:
                self.evicted.setdefault(key, set()).add(self.blocks[key])
            self.blocks[key] = (seed, size)
            return
        self.evicted.setdefault(key, set()).add((seed, size))  # cancelled late, it was durable and is given up
        if key in self.blocks:
            # A replacement that was cancelled late may have taken the old copy out of the index: the store puts it again.
            self.run(self.write(key, size))

    @rule(keys=st.lists(KEYS, min_size=2, unique=True), size=SIZES)
    def put_side_by_side(self, keys: list[bytes], size: int) -> None:
        async def all_of_them() -> None:
            for key in keys:
                await self.write(key, 1)
            await asyncio.gather(*(self.write(key, 5000) for key in keys))

        self.run(all_of_them())
        assert set(keys) <= set(self.blocks)

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        if key in self.blocks:
            self.run(self.store.delete(key))
            del self.blocks[key]
            self.evicted.pop(key, None)

    @rule(key=KEYS)
    def evict(self, key: bytes) -> None:
        async def evict() -> None:
            self.forget(key)

        if key in self.blocks:
            self.run(evict())

    @rule()
    def restart(self) -> None:
        self.run(self.store.close())
        self.store = self.run(SmallStore().open(self.config(self.folder / "nvme"), self.files))

    @rule()
    def lose_the_index(self) -> None:
        self.run(self.store.close())
        shutil.rmtree(self.folder / "nvme" / "index")
        self.store = self.run(SmallStore().open(self.config(self.folder / "nvme"), self.files))
        self.adopt_what_came_back(self.store)

    @rule(lose_index=st.booleans())
    def crash(self, lose_index: bool) -> None:
        """A copy of the folder as it is: what a killed process leaves."""
        copy = self.folder / "copy"
        shutil.copytree(self.folder / "nvme", copy)
        if lose_index:
            shutil.rmtree(copy / "index")
        store = self.run(SmallStore().open(self.config(copy)))
        blocks, evicted = dict(self.blocks), {key: set(states) for key, states in self.evicted.items()}
        self.adopt_what_came_back(store)
        self.compare(store)
        assert self.run(store.tier.check()) == []
        self.run(store.close())
        self.blocks, self.evicted = blocks, evicted
        shutil.rmtree(copy)

    def adopt_what_came_back(self, store: SmallStore) -> None:
        for (_, key), kept in store.blocks.items():
            if key not in self.blocks:
                content = self.run(store.get(key))
                same = [s for s in self.evicted.get(key, set()) if content == bytes(payload_of(*s)[: s[1]])]
                assert same, f"{key!r} of {kept.record.size} bytes is a phantom"
                self.blocks[key] = same[0]

    # --- invariants ---

    def compare(self, store: SmallStore) -> None:
        assert {key for _, key in store.blocks} == set(self.blocks)
        for key, (seed, size) in self.blocks.items():
            assert self.run(store.get(key)) == bytes(payload_of(seed, size)[:size])

    @invariant()
    def everything_is_there_byte_for_byte_and_nothing_else(self) -> None:
        if hasattr(self, "store"):
            self.compare(self.store)
            assert {key for _, key in self.store.tier.keys()} == set(self.blocks)  # noqa: SIM118 (not a dict)

    @invariant()
    def sizes_add_up(self) -> None:
        if hasattr(self, "store"):
            expected = sum(record_length(size) for _, size in self.blocks.values())
            assert self.store.tier.used_bytes == expected


TestNvmeModel = NvmeMachine.TestCase
TestNvmeModel.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
