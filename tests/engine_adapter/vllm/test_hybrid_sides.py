"""Scheduler and workers with several KV cache groups against a real daemon: what windows leave behind is saved all the same, loads
fill what is kept, and a load that fails fails the request. tests/engines has the same in vLLM itself."""

from collections.abc import Iterator
from itertools import count

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")

from daemon_process import DaemonProcess
from small_engine import BLOCK_TOKENS, Request, SmallEngine
from torch import Tensor

from mooncask.client.local import LocalClient

WINDOWS = (0, 2 * BLOCK_TOKENS)
TOKENS = 5 * BLOCK_TOKENS
TABLE = [[1, 2, 3, 4, 5, 6], [11, 12, 13, 14, 15, 16]]
names = count()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess.start(tmp_path_factory.mktemp("daemon"), {"limits.lease_max": "20s"}) as running:
        yield running


def request(blocks: int = 5) -> Request:
    """Of tokens that no other request has, and some more than `blocks` blocks."""
    number = next(names)
    return Request(f"h{number}", [number * 1000 + i for i in range(blocks * BLOCK_TOKENS + 3)])


def again(one: Request) -> Request:
    return Request(f"h{next(names)}", list(one.all_token_ids))


def part(engine: SmallEngine, group: int, place: int, rank: int = 0) -> Tensor:
    return torch.cat([engine.tensors[rank][name][place].flatten() for name in engine.layer_names[group]])


def kv(engine: SmallEngine) -> list[list[Tensor]]:
    """By group, of the blocks of TABLE."""
    return [[part(engine, group, place) for place in ids[:5]] for group, ids in enumerate(TABLE)]


def begin(engine: SmallEngine, one: Request) -> None:
    engine.scheduler.arrived(one)
    assert engine.matched(one) == 0
    engine.scheduler.allocated(one, TABLE, 0)


def compute(engine: SmallEngine, one: Request) -> None:
    begin(engine, one)
    engine.compute_table(one, TABLE, TOKENS)


def loaded(engine: SmallEngine, one: Request, table: list[list[int]]) -> int:
    engine.scheduler.arrived(one)
    tokens = engine.matched(one)
    engine.scheduler.allocated(one, table, tokens)
    engine.step()
    return tokens


@pytest.mark.parametrize("workers", [1, 2])
def test_a_load_fills_all_of_the_full_group_and_the_window_of_the_sliding_one(
    daemon: DaemonProcess, workers: int
) -> None:
    one = request()
    with (
        SmallEngine(daemon.socket_path, workers, seed=1, windows=WINDOWS) as first,
        SmallEngine(daemon.socket_path, workers, seed=2, windows=WINDOWS) as second,
    ):
        compute(first, one)
        first.settle()
        assert first.counters.totals["saved_blocks"] == 5 * workers
        before = [part(second, 0, place) for place in range(40)]
        assert loaded(second, again(one), [[21, 22, 23, 24, 25, 26], [0, 0, 0, 34, 35, 36]]) == TOKENS
        ended = second.settle()
        assert not ended.failed_requests and not ended.failed
        for rank in range(workers):
            for i in range(5):
                assert torch.equal(part(second, 0, 21 + i, rank), part(first, 0, TABLE[0][i], rank))
            for i in (3, 4):
                assert torch.equal(part(second, 1, 31 + i, rank), part(first, 1, TABLE[1][i], rank))
        untouched = set(range(40)) - {21, 22, 23, 24, 25, 34, 35}
        assert all(torch.equal(part(second, 0, place), before[place]) for place in untouched)


def test_what_a_window_leaves_behind_before_it_is_saved_is_copied_aside_and_saved(daemon: DaemonProcess) -> None:
    one = request()
    with (
        SmallEngine(daemon.socket_path, seed=1, windows=WINDOWS) as first,
        SmallEngine(daemon.socket_path, seed=2, windows=WINDOWS) as second,
    ):
        wanted = kv(first)
        begin(first, one)
        daemon.freeze()
        try:
            first.compute_table(one, TABLE, TOKENS)
            first.step()  # vLLM took back blocks 0 to 2 of the sliding group when it planned this one
            overwrite(first, TABLE[1][:3])
        finally:
            daemon.thaw()
        first.settle()
        assert first.counters.totals["captured_blocks"] == 3
        assert first.counters.totals["saved_blocks"] == 5
        two = again(one)
        two.all_token_ids[3 * BLOCK_TOKENS :] = [7, 8, 9]
        assert loaded(second, two, [[21, 22, 23, 24], [0, 32, 33, 34]]) == 3 * BLOCK_TOKENS
        second.settle()
        assert torch.equal(part(second, 1, 33), wanted[1][2]) and torch.equal(part(second, 0, 21), wanted[0][0])


def overwrite(engine: SmallEngine, places: list[int]) -> None:
    for tensor in engine.tensors[0].values():
        for place in places:
            tensor[place].fill_(float("nan"))


def test_a_finished_requests_window_leaves_the_rest_behind_too(daemon: DaemonProcess) -> None:
    one = request()
    with SmallEngine(daemon.socket_path, windows=WINDOWS) as engine:
        begin(engine, one)
        daemon.freeze()
        try:
            engine.compute_table(one, TABLE, TOKENS)
            assert engine.scheduler.finished(one, aborted=False)[0]
            plan = engine.step()
            assert plan.leaving == {one.request_id: 3}
            overwrite(engine, TABLE[1][:3])
            assert engine.collect(plan).sent == [set()]
        finally:
            daemon.thaw()
        assert engine.settle().sent == [{one.request_id}]
        assert engine.counters.totals["saved_blocks"] == 5


def test_what_there_is_no_room_to_copy_aside_is_not_saved_and_neither_is_what_follows(daemon: DaemonProcess) -> None:
    one = request()
    with SmallEngine(daemon.socket_path, windows=WINDOWS, capture_bytes=1) as engine:
        begin(engine, one)
        daemon.freeze()
        try:
            engine.compute_table(one, TABLE, TOKENS)
            engine.step()
            overwrite(engine, TABLE[1][:3])
        finally:
            daemon.thaw()
        engine.settle()
        assert engine.counters.totals["dropped_blocks"] == 5
        assert engine.counters.totals["saved_blocks"] == 0
        assert engine.matched(again(one)) == 0


def test_a_load_of_which_a_part_is_missing_fails_the_request_and_no_block(daemon: DaemonProcess) -> None:
    one = request()
    with SmallEngine(daemon.socket_path, windows=WINDOWS, lease_bytes=1) as engine:
        compute(engine, one)
        engine.settle()
        two = again(one)
        tokens = engine.matched(two)
        assert tokens == TOKENS
        engine.scheduler.allocated(two, [[21, 22, 23, 24, 25, 26], [0, 0, 0, 34, 35, 36]], tokens)
        with LocalClient.connect(daemon.socket_path) as client:
            keys = engine.scheduler.states[two.request_id].keys()
            assert client.evict(engine.scheduler.connection.handles[0], [keys[4]]) == 1
        engine.step()
        ended = engine.settle()
        assert ended.failed_requests == {two.request_id} and ended.received == [{two.request_id}]
        assert ended.failed == set()
        assert engine.matched(two) == 0, "a load that failed is not tried again"
        (save,) = engine.compute_table(two, [[21, 22, 23, 24, 25, 26], [31, 32, 33, 34, 35, 36]], TOKENS).saves
        assert save.places == [(25, 35)], "the blocks before it are in the store"
        engine.settle()


def test_a_prompt_that_is_there_to_its_end_has_its_last_block_computed(daemon: DaemonProcess) -> None:
    one = request()
    with SmallEngine(daemon.socket_path, windows=WINDOWS) as engine:
        compute(engine, one)
        engine.settle()
        whole = again(one)
        del whole.all_token_ids[TOKENS:]
        assert engine.matched(whole) == TOKENS - BLOCK_TOKENS


def test_an_engine_that_keeps_all_of_a_sliding_layers_kv_shares_with_one_that_does_not(daemon: DaemonProcess) -> None:
    """--disable-hybrid-kv-cache-manager changes where KV lies, not what it is."""
    one = request()
    with (
        SmallEngine(daemon.socket_path, seed=1, windows=WINDOWS) as hybrid,
        SmallEngine(daemon.socket_path, seed=2, layers=4) as one_group,
    ):
        compute(hybrid, one)
        hybrid.settle()
        assert loaded(one_group, again(one), [[21, 22, 23, 24, 25, 26]]) == TOKENS
        one_group.settle()
        for layer in range(4):
            here = one_group.tensors[0][f"layers.{layer}"][21]
            assert torch.equal(here, hybrid.tensors[0][f"layers.{layer}"][TABLE[layer % 2][0]])
