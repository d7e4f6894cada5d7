"""Random sequences of puts, reads, frees, flipped bits and restarts on each tier, against a dict."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tier_worlds import WORLDS, TierWorld, payload_of, record_of

from mooncask.errors import CorruptBlock
from mooncask.tiers.block import BlockRecord, Extent

T = TypeVar("T")

SIZES = st.sampled_from([1, 4095, 4096, 4097, 65_536, 65_537, 300_000, 1 << 20])


@dataclass(slots=True)
class Stored:
    """What the model knows of one extent: `record` is None while it is only reserved."""

    extent: Extent
    payload: bytes
    record: BlockRecord | None = None
    is_corrupt: bool = False


class TierMachine(RuleBasedStateMachine):
    """The model is a dict from a number to what was stored; the tier must agree with it after every rule."""

    world_name: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.pool = ThreadPoolExecutor(2)
        self.folder = TemporaryDirectory()
        self.model: dict[int, Stored] = {}
        self.serial = 0

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    @initialize()
    def open(self) -> None:
        context = WORLDS[self.world_name](Path(self.folder.name), self.pool)
        self.world: TierWorld = self.run(self.stack.enter_async_context(context))

    @rule(size=SIZES)
    def reserve(self, size: int) -> None:
        extent = self.world.tier.reserve(size)
        if extent is None:
            assert self.model, "an empty tier has room for the largest of these sizes"
            return
        self.serial += 1
        self.model[self.serial] = Stored(extent, payload_of(self.serial, size))

    @precondition(lambda self: any(stored.record is None for stored in self.model.values()))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([n for n, stored in self.model.items() if stored.record is None]))
        stored = self.model[number]
        record = record_of(b"block %d" % number, stored.payload)
        self.run(self.world.tier.commit(stored.extent, record, memoryview(stored.payload)))
        stored.record = record

    @rule(size=SIZES)
    def put(self, size: int) -> None:
        self.reserve(size)
        stored = self.model.get(self.serial)
        if stored is not None and stored.record is None:
            record = record_of(b"block %d" % self.serial, stored.payload)
            self.run(self.world.tier.commit(stored.extent, record, memoryview(stored.payload)))
            stored.record = record

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        self.check(self.model[data.draw(st.sampled_from(sorted(self.model)))])

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.world.tier.free(self.model.pop(data.draw(st.sampled_from(sorted(self.model)))).extent)

    @precondition(lambda self: any(stored.record for stored in self.model.values()))
    @rule(data=st.data())
    def corrupt_behind_its_back(self, data: st.DataObject) -> None:
        committed = [n for n, stored in self.model.items() if stored.record and not stored.is_corrupt]
        if not committed:
            return
        stored = self.model[data.draw(st.sampled_from(committed))]
        self.world.flip_bit(stored.extent, data.draw(st.integers(0, len(stored.payload) - 1)))
        stored.is_corrupt = True

    @precondition(lambda self: self.world.reopen is not None)
    @rule()
    def reopen(self) -> None:
        assert self.world.reopen is not None
        found = self.run(self.world.reopen())
        committed = {n: stored for n, stored in self.model.items() if stored.record}
        assert set(found) == {(1, b"block %d" % number) for number in committed}
        for number, stored in committed.items():
            stored.extent = found[1, b"block %d" % number]
        self.model = committed

    @invariant()
    def used_bytes_add_up(self) -> None:
        used = self.world.tier.used_bytes
        assert used == sum(stored.extent.length for stored in self.model.values())
        assert used <= self.world.tier.capacity_bytes

    @invariant()
    def keys_are_those_committed(self) -> None:
        committed = {(1, b"block %d" % number) for number, stored in self.model.items() if stored.record}
        listed = list(self.world.tier.keys())
        assert len(listed) == len(committed)
        assert set(listed) == committed

    def check(self, stored: Stored) -> None:
        record = stored.record or record_of(b"never committed", stored.payload)
        into = memoryview(bytearray(record.size))
        if stored.record is None or stored.is_corrupt:
            with pytest.raises(CorruptBlock):
                self.run(self.world.tier.read(stored.extent, record, into))
        else:
            self.run(self.world.tier.read(stored.extent, record, into))
            assert into == stored.payload

    def teardown(self) -> None:
        try:
            for stored in self.model.values():
                self.check(stored)
        finally:
            self.run(self.stack.aclose())
            self.pool.shutdown()
            self.loop.close()
            self.folder.cleanup()


@pytest.mark.parametrize("world_name", ["dram", "hbm-cpu"])
def test_the_tier_agrees_with_a_dict_whatever_is_done_to_it(world_name: str) -> None:
    machine = type(f"TierMachine[{world_name}]", (TierMachine,), {"world_name": world_name})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )
