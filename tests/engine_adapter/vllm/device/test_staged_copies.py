"""Copies through pinned memory against a device that does everything late (late_device.py): right bytes, or a fault by name.

The model is the bytes that each block must hold once all that was launched is done.
"""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from late_device import LateDevice

from mooncask.engine_adapter.vllm.device.copies import BlockCopy, Piece
from mooncask.engine_adapter.vllm.device.host import HostCopies
from mooncask.engine_adapter.vllm.device.staged import StagedCopies
from mooncask.engine_adapter.vllm.device.staging import Ring
from mooncask.errors import ConfigError, DeviceFault

BLOCKS = 12
PIECES = (96, 33, 128)
"""Bytes of a block's pieces; together no multiple of anything."""
BLOCK_BYTES = sum(PIECES)
SLOT_BYTES = 512


def random_bytes(chance: random.Random) -> Any:
    return torch.tensor(list(chance.randbytes(BLOCK_BYTES)), dtype=torch.uint8)


class Engine:
    """Blocks in the device's memory, written by kernels on its compute stream."""

    def __init__(self, device: LateDevice, seed: int = 0) -> None:
        self.device, self.chance = device, random.Random(seed)
        self.planes = [torch.zeros(BLOCKS, size, dtype=torch.uint8) for size in PIECES]

    def compute(self, block: int) -> Any:
        """Launches a kernel that writes the block; the bytes it will write."""
        made = random_bytes(self.chance)
        for plane, part in zip(self.planes, made.split(PIECES), strict=True):
            self.device.compute.launch(lambda plane=plane, part=part: plane[block].copy_(part))
        return made

    def copy(self, block: int, payload: Any) -> BlockCopy:
        starts = accumulate(PIECES, initial=0)
        return BlockCopy(
            [Piece(plane[block], start) for plane, start in zip(self.planes, starts, strict=False)], payload
        )

    def block(self, block: int) -> Any:
        return torch.cat([plane[block] for plane in self.planes])


def places(count: int) -> list[Any]:
    return [torch.zeros(BLOCK_BYTES, dtype=torch.uint8) for _ in range(count)]


def staged(device: LateDevice, slots: int = 2) -> StagedCopies:
    return StagedCopies(device, BLOCK_BYTES, 2 * slots * SLOT_BYTES)


# --- what each order is for ---


def test_a_save_has_what_the_step_computes_though_it_is_computed_late(device: LateDevice) -> None:
    engine, copies, saved = Engine(device), staged(device), places(5)
    wanted = [engine.compute(block) for block in range(5)]
    copies.save([engine.copy(block, place) for block, place in enumerate(saved)], copies.mark())
    assert all(torch.equal(a, b) for a, b in zip(saved, wanted, strict=True))


def test_what_is_computed_after_a_save_does_not_get_into_it(device: LateDevice) -> None:
    engine, copies, [place] = Engine(device), staged(device), places(1)
    wanted = engine.compute(3)
    copies.save([engine.copy(3, place)], copies.mark())
    engine.compute(3)
    device.finish()
    assert torch.equal(place, wanted)


def test_a_load_is_there_when_it_returns_and_what_was_launched_before_it_does_not_spoil_it(device: LateDevice) -> None:
    engine, copies = Engine(device), staged(device)
    payloads = [random_bytes(engine.chance) for _ in range(5)]
    for block in range(5):
        engine.compute(block)  # by the block's last owner, whose step is still under way
    copies.load([engine.copy(block, payload) for block, payload in enumerate(payloads)], copies.mark())
    assert all(torch.equal(engine.block(block), payload) for block, payload in enumerate(payloads))
    device.finish()
    assert all(torch.equal(engine.block(block), payload) for block, payload in enumerate(payloads))


def test_more_blocks_than_slots_go_through_in_turn_and_all_slots_come_back(device: LateDevice) -> None:
    engine, copies = Engine(device), staged(device, slots=1)
    payloads = [random_bytes(engine.chance) for _ in range(BLOCKS)]
    copies.load([engine.copy(block, payload) for block, payload in enumerate(payloads)], copies.mark())
    saved = places(BLOCKS)
    copies.save([engine.copy(block, place) for block, place in enumerate(saved)], copies.mark())
    assert all(torch.equal(a, b) for a, b in zip(saved, payloads, strict=True))
    assert device.copied_bytes == 2 * BLOCKS * BLOCK_BYTES
    assert all_slots_free(copies)


def all_slots_free(copies: StagedCopies) -> bool:
    return all(lane.ring.free == lane.ring.slots for lane in (copies._inward, copies._outward))


def test_copies_wait_for_no_device_but_where_they_must(device: LateDevice) -> None:
    """A mark is made in the engine's own thread."""
    engine, copies = Engine(device), staged(device)
    engine.compute(0)
    copies.mark()
    assert not torch.any(engine.block(0)), "to make a mark nothing was waited for"


# --- faults ---


@pytest.mark.parametrize("call", ["copy", "wait for an event", "order of two streams"])
@pytest.mark.parametrize("direction", ["load", "save"])
def test_a_fault_is_raised_when_nothing_is_under_way_any_more_and_later_copies_are_right(
    device: LateDevice, call: str, direction: str
) -> None:
    engine, copies = Engine(device), staged(device)
    mark = copies.mark()
    device.fail(call)
    with pytest.raises(DeviceFault, match=f"late:0: {call}: as planned"):
        getattr(copies, direction)([engine.copy(block, place) for block, place in enumerate(places(5))], mark)
    copies.check()
    assert device.waiting <= 1 and all_slots_free(copies), "at most the order of streams itself is still to be passed"
    wanted = engine.compute(1)  # as the engine does with blocks whose load failed
    device.finish()
    assert torch.equal(engine.block(1), wanted)
    [place] = places(1)
    copies.save([engine.copy(1, place)], copies.mark())
    copies.load([engine.copy(2, place)], copies.mark())
    assert torch.equal(engine.block(2), wanted)


def test_when_nobody_can_say_whether_a_load_has_ended_the_engine_is_told_to_end(device: LateDevice) -> None:
    engine, copies = Engine(device), staged(device)
    device.fail("wait for an event", "wait for a stream")
    with pytest.raises(DeviceFault, match="wait for an event"):
        copies.load([engine.copy(block, place) for block, place in enumerate(places(5))], copies.mark())
    with pytest.raises(DeviceFault, match="the engine must end"):
        copies.check()
    with pytest.raises(DeviceFault, match="given up"):
        copies.load([engine.copy(0, places(1)[0])], copies.mark())
    [place] = places(1)
    copies.save([engine.copy(0, place)], copies.mark())


def test_when_nobody_can_say_whether_a_save_has_ended_no_save_is_made_any_more_and_the_engine_goes_on(
    device: LateDevice,
) -> None:
    engine, copies, [place] = Engine(device), staged(device), places(1)
    device.fail("wait for an event", "wait for a stream")
    with pytest.raises(DeviceFault):
        copies.save([engine.copy(0, place)], copies.mark())
    with pytest.raises(DeviceFault, match="given up"):
        copies.save([engine.copy(0, place)], copies.mark())
    copies.check()
    payload = random_bytes(engine.chance)
    copies.load([engine.copy(0, payload)], copies.mark())
    assert torch.equal(engine.block(0), payload)


@pytest.mark.parametrize("made", [HostCopies, lambda: staged(LateDevice())])
def test_a_load_may_leave_parts_of_a_block_out_and_a_save_must_not(made: Any) -> None:
    engine, copies, payload = Engine(LateDevice()), made(), torch.ones(BLOCK_BYTES, dtype=torch.uint8)
    part = BlockCopy(engine.copy(3, payload).pieces[1:], payload)
    copies.load([part], copies.mark())
    assert torch.equal(engine.block(3), torch.tensor([0] * PIECES[0] + [1] * sum(PIECES[1:])))
    with pytest.raises(ValueError, match="only a part"):
        copies.save([part], copies.mark())


def test_memory_for_less_than_a_block_each_way_is_refused_by_the_settings_name() -> None:
    with pytest.raises(ConfigError, match=r"pinned_bytes = 1023.*at least 1024"):
        StagedCopies(LateDevice(), BLOCK_BYTES, 1023)
    assert StagedCopies(LateDevice(), BLOCK_BYTES, 1024).blocks_at_once == 1


# --- several threads ---


@pytest.mark.parametrize("seed", range(6))
def test_threads_that_share_few_slots_all_come_to_their_end_with_their_own_bytes(seed: int) -> None:
    device = LateDevice(seed)
    engine, copies = Engine(device, seed), staged(device, slots=3)
    errors: list[BaseException] = []
    wanted: dict[int, Any] = {}

    def work(number: int) -> None:
        chance = random.Random(seed * 100 + number)
        blocks = range(number * 3, number * 3 + 3)
        try:
            for _ in range(8):
                payloads = [random_bytes(chance) for _ in blocks]
                copies.load(list(map(engine.copy, blocks, payloads)), copies.mark())
                saved = places(3)
                copies.save(list(map(engine.copy, blocks, saved)), copies.mark())
                assert all(torch.equal(a, b) for a, b in zip(saved, payloads, strict=True))
                wanted.update(zip(blocks, payloads, strict=True))
        except BaseException as error:  # noqa: BLE001 - shown by the test itself
            errors.append(error)

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "threads wait for each other's slots"
    device.finish()
    assert errors == [] and device.faults_seen == [] and all_slots_free(copies)
    assert all(torch.equal(engine.block(block), payload) for block, payload in wanted.items())


def test_who_waits_for_a_slot_gets_the_one_that_is_given_back_and_is_told_when_there_will_be_none() -> None:
    ring = Ring("late:0", torch.zeros(SLOT_BYTES, dtype=torch.uint8), BLOCK_BYTES)
    slot = ring.take()
    assert ring.take_now() is None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ring.take)
        ring.give_back(slot)
        assert waiting.result(30).data_ptr() == slot.data_ptr()
        waiting = pool.submit(ring.take)
        ring.break_up("the device is gone")
        with pytest.raises(DeviceFault, match=r"late:0: .*given up: the device is gone"):
            waiting.result(30)
    ring.give_back(slot)
    with pytest.raises(DeviceFault):
        ring.take_now()


# --- the model ---


class StagedCopiesModel(RuleBasedStateMachine):
    """`blocks`: what each will hold when all that was launched is done. None after a load that failed."""

    @initialize(seed=st.integers(0, 1 << 30), slots=st.integers(1, 4))
    def begin(self, seed: int, slots: int) -> None:
        self.device = LateDevice(seed)
        self.engine = Engine(self.device, seed)
        self.copies = staged(self.device, slots)
        self.blocks: list[Any] = [torch.zeros(BLOCK_BYTES, dtype=torch.uint8) for _ in range(BLOCKS)]
        self.mark = self.copies.mark()
        self.changed: set[int] = set()
        """Blocks that kernels have been launched for since the mark."""

    @rule(block=st.integers(0, BLOCKS - 1))
    def compute(self, block: int) -> None:
        self.blocks[block] = self.engine.compute(block)
        self.changed.add(block)

    @rule()
    def end_of_a_step(self) -> None:
        self.mark, self.changed = self.copies.mark(), set()

    @rule(steps=st.integers(1, 30))
    def time_goes_by(self, steps: int) -> None:
        self.device.pass_time(steps)

    @rule(chosen=st.sets(st.integers(0, BLOCKS - 1), max_size=6))
    def save(self, chosen: set[int]) -> None:
        """As an engine does: only of what no kernel has changed since the mark."""
        blocks = sorted(chosen - self.changed)
        saved = places(len(blocks))
        self.copies.save(list(map(self.engine.copy, blocks, saved)), self.mark)
        for block, place in zip(blocks, saved, strict=True):
            assert self.blocks[block] is None or torch.equal(place, self.blocks[block])

    @rule(chosen=st.sets(st.integers(0, BLOCKS - 1), max_size=6))
    def load(self, chosen: set[int]) -> None:
        blocks = sorted(chosen - self.changed)
        payloads = [random_bytes(self.engine.chance) for _ in blocks]
        self.copies.load(list(map(self.engine.copy, blocks, payloads)), self.mark)
        for block, payload in zip(blocks, payloads, strict=True):
            assert torch.equal(self.engine.block(block), payload), "a kernel that begins now would read it"
            self.blocks[block] = payload.clone()
            payload.fill_(0)  # the store's memory is somebody else's now

    @precondition(lambda self: not self.changed)
    @rule(
        chosen=st.sets(st.integers(0, BLOCKS - 1), min_size=1, max_size=6),
        call=st.sampled_from(["copy", "wait for an event", "order of two streams"]),
        saves=st.booleans(),
    )
    def fault(self, chosen: set[int], call: str, saves: bool) -> None:
        self.device.fail(call)
        copies = [self.engine.copy(block, random_bytes(self.engine.chance)) for block in sorted(chosen)]
        with pytest.raises(DeviceFault):
            (self.copies.save if saves else self.copies.load)(copies, self.mark)
        for copy in copies:
            copy.payload.fill_(0)
        for block in chosen if not saves else ():
            self.blocks[block] = None
        self.copies.check()

    @invariant()
    def nothing_was_used_too_early_and_no_slot_is_lost(self) -> None:
        assert self.device.faults_seen == [] and all_slots_free(self.copies)

    def teardown(self) -> None:
        self.device.finish()
        for block, wanted in enumerate(self.blocks):
            assert wanted is None or torch.equal(self.engine.block(block), wanted)


TestStagedCopies = StagedCopiesModel.TestCase
TestStagedCopies.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
