"""Loads within the step that computes the request, against a real daemon: what a layer waits for, and that KV which did not come is
used by nobody."""

from collections.abc import Iterator
from itertools import count

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")

from daemon_process import DaemonProcess
from small_engine import BLOCK_TOKENS, Request, SmallEngine

from mooncask.client.local import LocalClient
from mooncask.engine_adapter.vllm.scheduling import Scheduled

names = count()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess.start(tmp_path_factory.mktemp("daemon"), {"limits.lease_max": "20s"}) as running:
        yield running


def request(blocks: int, more: int = 3) -> Request:
    number = next(names)
    return Request(f"l{number}", [number * 1000 + i for i in range(blocks * BLOCK_TOKENS + more)])


def again(one: Request) -> Request:
    return Request(f"l{next(names)}", list(one.all_token_ids))


def stored(engine: SmallEngine, one: Request, ids: list[int]) -> None:
    engine.scheduler.arrived(one)
    assert engine.matched(one) == 0
    engine.scheduler.allocated(one, [ids], 0)
    engine.compute(one, ids)
    engine.settle()
    engine.scheduler.finished(one, aborted=False)


def scheduled(engine: SmallEngine, one: Request, ids: list[int]) -> int:
    """vLLM has matched the request and given it places; it is in the next step."""
    engine.scheduler.arrived(one)
    tokens = engine.matched(one)
    engine.scheduler.allocated(one, [ids], tokens)
    return tokens


def in_step(one: Request, tokens: int, ids: list[int]) -> list[Scheduled]:
    return [Scheduled(one.request_id, tokens, len(one.all_token_ids), [ids], True)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_layer_that_was_waited_for_is_in_and_the_request_waits_for_nothing_else(
    daemon: DaemonProcess, workers: int
) -> None:
    one = request(3)
    with (
        SmallEngine(daemon.socket_path, workers, seed=1) as first,
        SmallEngine(daemon.socket_path, workers, seed=2, load_mode="layerwise") as second,
    ):
        stored(first, one, [5, 9, 2, 7])
        two = again(one)
        tokens = scheduled(second, two, [1, 3, 4, 6])
        assert tokens == 3 * BLOCK_TOKENS and second.scheduler.loads_in_step(two.request_id)
        plan = second.scheduler.step(in_step(two, tokens, [1, 3, 4, 6]), (), 3)
        for rank, worker in enumerate(second.workers):
            worker.start_loads(plan)
            for name, tensor in second.tensors[rank].items():
                worker.wait_for_layer(name)
                for source, target in ((5, 1), (9, 3), (2, 4)):
                    assert torch.equal(tensor[target], first.tensors[rank][name][source])
            worker.start_saves(plan)
        ended = second.collect(plan)
        assert ended.received == [set()] * workers, "vLLM is told of loads that a request waited for only"
        assert not ended.failed and not ended.wrong
        assert second.counters.totals["loaded_blocks"] == 3 * workers
        assert second.counters.totals["layerwise_loads"] == 1


def test_something_is_left_to_compute_of_a_prompt_that_is_there_to_its_end(daemon: DaemonProcess) -> None:
    one = request(3, more=0)
    with SmallEngine(daemon.socket_path, load_mode="layerwise") as engine:
        stored(engine, one, [0, 1, 2])
        assert engine.matched(again(one)) == 2 * BLOCK_TOKENS


def test_more_than_one_lease_is_loaded_before_the_request_is_computed(daemon: DaemonProcess) -> None:
    one = request(3)
    with SmallEngine(daemon.socket_path, load_mode="layerwise", lease_bytes=1) as engine:
        stored(engine, one, [0, 1, 2, 3])
        two = again(one)
        assert engine.matched(two) == 3 * BLOCK_TOKENS
        assert not engine.scheduler.loads_in_step(two.request_id)


def test_blocks_that_do_not_come_are_reported_and_nothing_that_was_computed_from_them_is_saved_or_shared(
    daemon: DaemonProcess,
) -> None:
    one = request(4)
    ids = [10, 11, 12, 13, 14]
    with SmallEngine(daemon.socket_path, load_mode="layerwise") as engine:
        stored(engine, one, [0, 1, 2, 3, 4])
        two = again(one)
        two.all_token_ids += range(2 * BLOCK_TOKENS)  # two blocks more, of which one is full in this step
        ids = [10, 11, 12, 13, 14, 15, 16]
        tokens = scheduled(engine, two, ids)
        assert tokens == 4 * BLOCK_TOKENS
        with LocalClient.connect(daemon.socket_path) as client:
            client.adopt(engine.scheduler._loads[0].tokens[""]).close()
            keys = engine.scheduler.states[two.request_id].keys()
            assert client.evict(engine.scheduler.connection.handles[0], [keys[2]]) == 1
        plan = engine.step(in_step(two, tokens, ids), tokens=BLOCK_TOKENS)
        assert [save.first for save in plan.saves] == [4]
        ended = engine.settle()
        assert ended.failed == {12, 13}
        assert ended.wrong == {12, 13, 14, 15, 16}, "what was computed after them, too"
        assert engine.counters.totals["saved_blocks"] == 4 and engine.counters.totals["dropped_blocks"] >= 1
        again_planned = engine.step([Scheduled(two.request_id, 2 * BLOCK_TOKENS, 6 * BLOCK_TOKENS, (), False)])
        assert [(save.first, save.places[0]) for save in again_planned.saves] == [(2, (12,))]
        engine.settle()
        assert engine.matched(again(two)) == 6 * BLOCK_TOKENS


def test_a_daemon_that_is_gone_by_then_fails_the_load_and_lets_every_layer_go_on(
    daemon: DaemonProcess,
) -> None:
    one = request(2)
    with SmallEngine(daemon.socket_path, load_mode="layerwise", deadline_ms=200) as engine:
        stored(engine, one, [0, 1, 2])
        two = again(one)
        tokens = scheduled(engine, two, [10, 11, 12])
        before = engine.block(0, 10)
        daemon.freeze()
        try:
            plan = engine.scheduler.step(in_step(two, tokens, [10, 11, 12]), (), 3)
            engine.workers[0].start_loads(plan)
            for name in engine.tensors[0]:
                engine.workers[0].wait_for_layer(name)
            engine.workers[0].start_saves(plan)
            ended = engine.collect(plan)
        finally:
            daemon.thaw()
        assert ended.failed == {10, 11} and ended.wrong == {10, 11, 12}
        assert all(torch.equal(a, b) for a, b in zip(engine.block(0, 10), before, strict=True))


def test_nobody_begins_with_kv_that_is_being_loaded_in_the_same_step(daemon: DaemonProcess) -> None:
    one, other = request(2), request(2)
    with SmallEngine(daemon.socket_path, load_mode="layerwise") as engine:
        stored(engine, one, [0, 1, 2])
        two = again(one)
        tokens = scheduled(engine, two, [10, 11, 12])
        assert engine.scheduler.matched(again(one), 2 * BLOCK_TOKENS) is None, (
            "vLLM's own cache has two's blocks by now"
        )
        assert engine.matched(other) == 0
        engine.step(in_step(two, tokens, [10, 11, 12]), tokens=3)
        engine.settle()
        assert engine.matched(again(one), 2 * BLOCK_TOKENS) == 0
