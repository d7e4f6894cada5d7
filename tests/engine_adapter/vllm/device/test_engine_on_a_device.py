"""The connector's two sides, a real daemon, and an engine whose KV is on a device that does everything late (late_device.py)."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import count
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")

from daemon_process import DaemonProcess
from late_device import LateDevice
from small_engine import BLOCK_TOKENS, Request, SmallEngine, until

from mooncask.engine_adapter.vllm import device as device_room
from mooncask.engine_adapter.vllm.device.host import HostCopies
from mooncask.engine_adapter.vllm.device.staged import StagedCopies
from mooncask.errors import DeviceFault

PINNED_BYTES = 64 << 10
names = count()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess.start(tmp_path_factory.mktemp("daemon"), {"limits.lease_max": "20s"}) as running:
        yield running


def engine_on(device: LateDevice, daemon: DaemonProcess, **settings: Any) -> SmallEngine:
    block_bytes = 4 * 2 * BLOCK_TOKENS * 8 * 4  # of the largest of these engines
    return SmallEngine(daemon.socket_path, copies=StagedCopies(device, block_bytes, PINNED_BYTES), **settings)


def request(blocks: int) -> Request:
    number = next(names)
    return Request(f"r{number}", [number * 1000 + i for i in range(blocks * BLOCK_TOKENS + 1)])


def again(one: Request) -> Request:
    return Request(f"r{next(names)}", list(one.all_token_ids))


def compute(engine: SmallEngine, device: LateDevice, block_ids: list[int], value: float) -> None:
    """Launches kernels that write the blocks; nothing is written yet."""
    for tensor in engine.tensors[0].values():
        for block_id in block_ids:
            device.compute.launch(lambda tensor=tensor, block_id=block_id: tensor[block_id].fill_(value + block_id))


def holds(engine: SmallEngine, block_id: int, value: float) -> bool:
    return all(torch.all(tensor[block_id] == value) for tensor in engine.tensors[0].values())


def store(engine: SmallEngine, device: LateDevice, one: Request, block_ids: list[int], value: float) -> None:
    """A step computes the request; it is saved, and is over."""
    engine.scheduler.arrived(one)
    engine.matched(one)
    engine.scheduler.allocated(one, [block_ids], 0)
    compute(engine, device, block_ids, value)
    engine.compute(one, block_ids)
    engine.settle()
    engine.scheduler.finished(one, aborted=False)


def begin_load(engine: SmallEngine, one: Request, block_ids: list[int]) -> int:
    engine.scheduler.arrived(one)
    tokens = engine.matched(one)
    engine.scheduler.allocated(one, [block_ids], tokens)
    engine.step()
    return tokens


def test_what_a_step_computes_late_is_saved_and_loaded_over_what_was_launched_before(
    daemon: DaemonProcess, device: LateDevice
) -> None:
    one = request(3)
    with engine_on(device, daemon) as engine:
        store(engine, device, one, [5, 9, 2, 7], value=100.0)
        two = again(one)
        compute(engine, device, [11, 12, 13], value=-1.0)  # the blocks' last owner is still being computed
        assert begin_load(engine, two, [11, 12, 13, 14]) == 3 * BLOCK_TOKENS
        assert engine.settle().received == [{two.request_id}]
        assert all(holds(engine, target, 100.0 + source) for target, source in ((11, 5), (12, 9), (13, 2)))
        device.finish()
        assert all(holds(engine, target, 100.0 + source) for target, source in ((11, 5), (12, 9), (13, 2)))


def test_an_engine_on_a_device_and_one_in_memory_share_what_they_have(
    daemon: DaemonProcess, device: LateDevice
) -> None:
    one = request(2)
    with engine_on(device, daemon) as engine, SmallEngine(daemon.socket_path) as other:
        store(engine, device, one, [0, 1, 2], value=7.0)
        assert begin_load(other, again(one), [3, 4, 5]) == 2 * BLOCK_TOKENS
        other.settle()
        assert holds(other, 3, 7.0) and holds(other, 4, 8.0)


def test_a_step_that_waits_for_each_layer_has_it_when_it_goes_on(daemon: DaemonProcess, device: LateDevice) -> None:
    one = request(2)
    with engine_on(device, daemon, load_mode="layerwise") as engine:
        store(engine, device, one, [0, 1, 2], value=50.0)
        for _ in range(20):  # by the blocks' last owner: still under way when the first layer could be in
            compute(engine, device, [10, 11], value=-1.0)
        assert begin_load(engine, again(one), [10, 11, 12]) == 2 * BLOCK_TOKENS
        for name, tensor in engine.tensors[0].items():
            engine.workers[0].wait_for_layer(name)
            assert torch.all(tensor[10] == 50.0) and torch.all(tensor[11] == 51.0)
        engine.settle()
        device.finish()
        assert holds(engine, 10, 50.0) and holds(engine, 11, 51.0)


def test_a_preempted_requests_blocks_are_somebody_elses_only_when_the_device_has_read_them(
    daemon: DaemonProcess, device: LateDevice
) -> None:
    one = request(3)
    with engine_on(device, daemon) as engine, ThreadPoolExecutor(1) as pool:
        engine.scheduler.arrived(one)
        engine.matched(one)
        engine.scheduler.allocated(one, [[0, 1, 2, 3]], 0)
        compute(engine, device, [0, 1, 2, 3], value=20.0)
        device.runs.clear()
        engine.compute(one, [0, 1, 2, 3])
        until(lambda: device.waiting > 0, "begun")

        def preempt() -> None:
            engine.step(preempted=(one.request_id,))
            compute(engine, device, [0, 1, 2, 3], value=-1.0)
            for tensor in engine.tensors[0].values():
                tensor[:4] = -1.0  # as if the device had overtaken the copies

        preempted = pool.submit(preempt)
        wait([preempted], 0.2)  # which is over only if it does not wait for the device; then the bytes below are wrong
        device.runs.set()
        preempted.result(30)
        engine.settle()
        assert begin_load(engine, again(one), [10, 11, 12, 13]) == 3 * BLOCK_TOKENS
        engine.settle()
        assert all(holds(engine, 10 + i, 20.0 + i) for i in range(3))


def test_a_load_that_the_device_fails_is_told_block_by_block_and_by_name(
    daemon: DaemonProcess, device: LateDevice, caplog: pytest.LogCaptureFixture
) -> None:
    one = request(3)
    with engine_on(device, daemon) as engine:
        store(engine, device, one, [0, 1, 2, 3], value=1.0)
        device.fail("copy")
        with caplog.at_level(logging.WARNING):
            begin_load(engine, again(one), [10, 11, 12, 13])
            ended = engine.settle()
        assert ended.failed == {10, 11, 12} and engine.counters.totals["loaded_blocks"] == 0
        assert engine.workers[0].connection.faults == {"DeviceFault": 1}
        assert "late:0: copy: as planned by the test" in caplog.text
        compute(engine, device, [10, 11, 12], value=70.0)
        device.finish()
        assert holds(engine, 11, 81.0), "nothing writes to them any more"


def test_a_save_that_the_device_fails_is_no_block_of_the_store(
    daemon: DaemonProcess, device: LateDevice, caplog: pytest.LogCaptureFixture
) -> None:
    one = request(3)
    with engine_on(device, daemon) as engine:
        device.fail("wait for an event")
        store(engine, device, one, [0, 1, 2, 3], value=1.0)
        assert engine.counters.totals["dropped_blocks"] == 3 and engine.counters.totals["saved_blocks"] == 0
        assert engine.workers[0].connection.faults == {"DeviceFault": 1}
        assert engine.matched(again(one)) == 0
        two = request(2)
        store(engine, device, two, [4, 5, 6], value=1.0)
        assert engine.matched(again(two)) == 2 * BLOCK_TOKENS, "the next one is saved"


def test_what_a_window_leaves_behind_and_the_device_fails_to_copy_aside_is_not_saved_and_nothing_else_happens(
    daemon: DaemonProcess, device: LateDevice
) -> None:
    one, table = request(5), [[1, 2, 3, 4, 5, 6], [11, 12, 13, 14, 15, 16]]
    with engine_on(device, daemon, windows=(0, 2 * BLOCK_TOKENS), deadline_ms=20_000) as engine:
        engine.scheduler.arrived(one)
        engine.matched(one)
        engine.scheduler.allocated(one, table, 0)
        daemon.freeze()  # nothing is saved before the window goes on
        try:
            engine.compute_table(one, table, 5 * BLOCK_TOKENS)
            device.fail("wait for an event")
            engine.step()
        finally:
            daemon.thaw()
        engine.settle()
        assert engine.counters.totals["dropped_blocks"] == 5 and engine.counters.totals["saved_blocks"] == 0
        assert engine.workers[0].connection.faults["DeviceFault"] == 1
        assert engine.workers[0]._capture_room.take(engine.workers[0]._settings.capture_bytes), "its room is free again"


def test_an_engine_into_whose_memory_copies_may_still_be_under_way_ends_by_name(
    daemon: DaemonProcess, device: LateDevice, caplog: pytest.LogCaptureFixture
) -> None:
    one = request(2)
    with engine_on(device, daemon) as engine:
        store(engine, device, one, [0, 1, 2], value=1.0)
        device.fail("wait for an event", "wait for a stream")
        begin_load(engine, again(one), [10, 11, 12])
        with pytest.raises(DeviceFault, match="the engine must end"):
            engine.settle()
        assert engine.workers[0].failed_blocks() == {10, 11}, "which nobody has been told, so nobody computes them"


def test_kv_in_cpu_memory_is_copied_straight_and_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert isinstance(device_room.copies_for(torch.device("cpu"), 1 << 20, 1), HostCopies)
    assert caplog.text == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_kv_on_a_gpu_is_taken_with_a_word_of_warning_and_without_cuda_it_fails_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(DeviceFault, match=r"cuda:3: .* bytes of pinned memory"):
        device_room.copies_for(torch.device("cuda:3"), 1 << 20, 4 << 20)
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("the KV cache is on cuda:3") and "checked on CPU only" in said and "make gpu-check" in said
