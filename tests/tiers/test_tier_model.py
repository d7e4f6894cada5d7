"""Random sequences of puts, reads, frees, flipped bits and restarts on each tier, against a dict."""

import asyncio
from collections.abc import Callable, Coroutine
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
    corrupt_at: tuple[int, int] | None = None
    """Offset and generation of the place whose bytes were changed."""


def name_of(number: int) -> tuple[int, bytes]:
    return 1, b"block %d" % number


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

    def call(self, method: Callable[[], T]) -> T:
        """A plain method, called from the running loop as the interface demands."""

        async def calling() -> T:
            return method()

        return self.run(calling())

    @initialize()
    def open(self) -> None:
        context = WORLDS[self.world_name](Path(self.folder.name), self.pool)
        self.world: TierWorld = self.run(self.stack.enter_async_context(context))

    @rule(size=SIZES)
    def reserve(self, size: int) -> None:
        extent = self.call(lambda: self.world.tier.reserve(size))
        if extent is None and self.run(self.world.room(size)):
            extent = self.call(lambda: self.world.tier.reserve(size))
        if extent is None:
            assert self.model, "an empty tier has room for the largest of these sizes"
            return
        self.serial += 1
        self.model[self.serial] = Stored(extent, payload_of(self.serial, size))

    @precondition(lambda self: any(stored.record is None for stored in self.model.values()))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([n for n, stored in self.model.items() if stored.record is None]))
        self.run(self.do_commit(number))

    @rule(size=SIZES)
    def put(self, size: int) -> None:
        self.reserve(size)
        stored = self.model.get(self.serial)
        if stored is not None and stored.record is None:
            self.run(self.do_commit(self.serial))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        self.check(data.draw(st.sampled_from(sorted(self.model))))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.model)))
        self.call(lambda: self.do_free(number))

    @precondition(lambda self: any(stored.record for stored in self.model.values()))
    @rule(data=st.data())
    def corrupt_behind_its_back(self, data: st.DataObject) -> None:
        committed = [n for n, stored in self.model.items() if stored.record and not stored.corrupt_at]
        if not committed:
            return
        number = data.draw(st.sampled_from(committed))
        place, size = self.place(number), len(self.model[number].payload)
        self.world.flip_bit(place, data.draw(st.integers(0, size - 1)))
        self.model[number].corrupt_at = place.offset, place.generation

    @precondition(lambda self: self.world.reopen is not None)
    @rule()
    def reopen(self) -> None:
        assert self.world.reopen is not None
        self.run(self.world.reopen())
        self.model = {n: stored for n, stored in self.model.items() if stored.record}
        assert set(self.world.places) == {name_of(n) for n in self.model}
        assert self.world.tier.used_bytes == sum(extent.length for extent in self.world.places.values())

    @invariant()
    def used_bytes_add_up(self) -> None:
        """A tier that moves blocks counts those that are on their way twice; after a restart it must be exact."""
        used = self.world.tier.used_bytes
        expected = sum(self.place(number).length for number in self.model)
        assert expected <= used <= self.world.tier.capacity_bytes
        assert used == expected or self.world.reopen is not None

    @invariant()
    def keys_are_those_committed(self) -> None:
        """A tier that moves blocks may list one that was freed while it moved a little longer; a restart shows the truth."""
        committed = {name_of(number) for number, stored in self.model.items() if stored.record}
        listed = self.call(lambda: list(self.world.tier.keys()))
        assert len(listed) == len(set(listed))
        assert committed <= set(listed)
        assert committed == set(listed) or self.world.reopen is not None

    def place(self, number: int) -> Extent:
        return self.world.places.get(name_of(number), self.model[number].extent)

    def do_free(self, number: int) -> None:
        """In one step of the loop: a tier that moves blocks must not see a place that was given back."""
        self.world.tier.free(self.place(number))
        self.world.places.pop(name_of(number), None)
        del self.model[number]

    async def do_commit(self, number: int) -> None:
        stored = self.model[number]
        record = record_of(name_of(number)[1], stored.payload)
        await self.world.tier.commit(stored.extent, record, memoryview(stored.payload))
        self.world.places[name_of(number)] = stored.extent
        stored.record = record

    def check(self, number: int) -> None:
        """Wrong bytes are never served, right ones always are.

        A block may have been moved between the copying of its bytes and the flip of a bit in the old place: then it may
        be whole. One that is moved while it is read is looked for again, as the NVMe tier asks of its readers.
        """
        stored, place = self.model[number], self.place(number)
        record = stored.record or record_of(b"never committed", stored.payload)
        into = memoryview(bytearray(record.size))
        try:
            self.run(self.world.tier.read(place, record, into))
        except CorruptBlock:
            if self.place(number) is not place:
                self.check(number)
            else:
                assert stored.record is None or stored.corrupt_at
        else:
            assert into == stored.payload
            assert stored.record
            assert stored.corrupt_at != (place.offset, place.generation)

    def teardown(self) -> None:
        try:
            for number in self.model:
                self.check(number)
        finally:
            self.run(self.stack.aclose())
            self.pool.shutdown()
            self.loop.close()
            self.folder.cleanup()


@pytest.mark.parametrize(
    ("world_name", "examples"),
    [
        ("dram", 25),
        ("hbm-cpu", 15),
        ("nvme", 6),
        pytest.param("dram", 400, marks=pytest.mark.slow),
        pytest.param("hbm-cpu", 200, marks=pytest.mark.slow),
        pytest.param("nvme", 100, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_the_tier_agrees_with_a_dict_whatever_is_done_to_it(world_name: str, examples: int) -> None:
    machine = type(f"TierMachine[{world_name}]", (TierMachine,), {"world_name": world_name})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
