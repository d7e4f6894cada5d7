"""The store as engines' backends see it: hits and misses only, whatever happens to the daemon; and the pure parts of it."""

import os
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from daemon_process import DaemonProcess

from mooncask.client.local import LocalClient
from mooncask.engine_adapter.block_store import WINDOW_BLOCKS, BlockStore, Place, StoreAddress
from mooncask.engine_adapter.patience import FIRST_SECONDS, LATE_MAX, SECONDS_MAX, Patience
from mooncask.engine_adapter.spans import Span, joined, span_of
from mooncask.errors import Busy, DaemonUnavailable, DeadlineExceeded, NoSuchBlock

_numbers = count()
GONE = DaemonUnavailable("/a/socket", "it is gone")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess.start(tmp_path_factory.mktemp("store")) as daemon:
        yield daemon


@pytest.fixture
def store(daemon: DaemonProcess) -> Iterator[BlockStore]:
    store = BlockStore(StoreAddress(daemon.socket_path), "tests", {"model": f"number {next(_numbers)}"}, "tp 0/1")
    yield store
    store.close()


def keys(number: int) -> list[bytes]:
    return [i.to_bytes(16, "big") for i in range(1, number + 1)]


def random_bytes(size: int) -> np.ndarray:
    return np.frombuffer(os.urandom(size), np.uint8).copy()


def test_a_block_is_put_together_from_pieces_and_taken_apart_again(store: BlockStore) -> None:
    k, v = random_bytes(3000), random_bytes(500)
    assert store.write(keys(1), [[span_of(k), span_of(v)]]) == [True]
    front, back = np.zeros(700, np.uint8), np.zeros(2800, np.uint8)
    assert store.read(keys(1), [[span_of(front, writable=True), span_of(back, writable=True)]]) == [True]
    assert np.array_equal(np.concatenate([k, v]), np.concatenate([front, back]))


def test_what_is_missing_is_told_block_by_block(store: BlockStore) -> None:
    one, two, three = keys(3)
    data = random_bytes(100)
    store.write([one, three], [[span_of(data)]] * 2)
    assert store.prefix([one, two, three]) == 1
    assert store.present([one, two, three]) == [True, False, True]
    targets = [np.zeros(100, np.uint8) for _ in range(3)]
    assert store.read([one, two, three], [[span_of(t, writable=True)] for t in targets]) == [True, False, True]
    assert [bool(t.any()) for t in targets] == [True, False, True]
    assert store.counts["loaded"] == 2 and store.counts["stored"] == 2


def test_a_block_of_another_length_is_a_miss_and_changes_nothing(store: BlockStore) -> None:
    store.write(keys(1), [[span_of(random_bytes(100))]])
    target = np.zeros(99, np.uint8)
    assert store.read(keys(1), [[span_of(target, writable=True)]]) == [False]
    assert not target.any()
    assert store.write(keys(1), [[span_of(random_bytes(50))]]) == [False]
    assert store.counts["LengthMismatch"] == 2


def test_many_blocks_go_in_several_windows(store: BlockStore) -> None:
    number = 2 * WINDOW_BLOCKS + 3
    data = random_bytes(64 * number).reshape(number, 64)
    assert all(store.write(keys(number), [[span_of(row)] for row in data]))
    copy = np.zeros_like(data)
    assert all(store.read(keys(number), [[span_of(row, writable=True)] for row in copy]))
    assert np.array_equal(data, copy)
    assert store.clear(10.0) and store.prefix(keys(number)) == 0


def test_blocks_are_stored_with_their_place_in_the_chain(daemon: DaemonProcess, store: BlockStore) -> None:
    data = random_bytes(64)
    parent, *rest = keys(3)
    assert all(store.write(rest, [[span_of(data)]] * 2, Place(parent, 7, 16)))
    with LocalClient.connect(daemon.socket_path) as client:
        stats = client.stat(client.open_namespace(family=store.family, shard=store.shard), rest)
    assert [(s.parent, s.depth, s.tokens) for s in stats if s] == [(parent, 7, 16), (rest[0], 8, 16)]


def test_a_store_without_a_daemon_is_made_and_misses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = BlockStore(StoreAddress(str(tmp_path / "none"), deadline_seconds=0.5), "tests", {})
    began = time.monotonic()
    assert store.prefix(keys(2)) == 0
    assert store.read(keys(1), [[span_of(np.zeros(1, np.uint8))]]) == [False]
    assert store.write(keys(1), [[span_of(np.zeros(1, np.uint8))]]) == [False]
    assert time.monotonic() - began < 2.0
    assert store.counts["DaemonUnavailable"] == 1 and store.counts["not_asked"] == 2
    assert len([r for r in caplog.records if "going on without the store" in r.message]) == 1
    store.close()


def test_a_store_whose_daemon_was_restarted_goes_on(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path) as daemon:
        store = BlockStore(StoreAddress(daemon.socket_path), "tests", {"model": "restarted"})
        data = random_bytes(5000)
        assert store.write(keys(1), [[span_of(data)]]) == [True]
        daemon.kill()
        assert store.prefix(keys(1)) == 0
        daemon.run()
        end = time.monotonic() + 20
        while store.write(keys(2), [[span_of(data)]] * 2) != [True, True]:
            assert time.monotonic() < end
        target = np.zeros(5000, np.uint8)
        assert store.read(keys(1), [[span_of(target, writable=True)]]) == [True]
        assert np.array_equal(data, target)
        store.close()


def test_neighbouring_pieces_are_copied_as_one() -> None:
    assert joined([Span(100, 10), Span(110, 5), Span(200, 1), Span(199, 1)]) == [
        Span(100, 15),
        Span(200, 1),
        Span(199, 1),
    ]


def test_patience_waits_longer_each_time_and_not_after_an_answer() -> None:
    patience = Patience()
    patience.failed(GONE, 10.0)
    assert not patience.may_ask(10.0 + FIRST_SECONDS / 2) and patience.may_ask(10.0 + FIRST_SECONDS)
    patience.failed(GONE, 20.0)
    assert not patience.may_ask(20.0 + FIRST_SECONDS) and patience.may_ask(20.0 + 2 * FIRST_SECONDS)
    for _ in range(10):
        patience.failed(GONE, 30.0)
    assert patience.may_ask(30.0 + SECONDS_MAX)
    patience.worked()
    patience.failed(GONE, 40.0)
    assert patience.may_ask(40.0 + FIRST_SECONDS)


def test_patience_takes_several_late_answers_for_one_that_is_gone_and_others_for_nothing() -> None:
    patience, late = Patience(), DeadlineExceeded("match", 1.0)
    patience.failed(NoSuchBlock("a", "b"), 1.0)
    patience.failed(Busy("dram", 1.0), 1.0)
    for _ in range(LATE_MAX - 1):
        patience.failed(late, 1.0)
        assert patience.may_ask(1.0)
    patience.failed(late, 1.0)
    assert not patience.may_ask(1.0)


def test_a_batch_that_names_a_block_twice_or_has_some_already_stores_the_rest(store: BlockStore) -> None:
    one, two, three = keys(3)
    a, b = random_bytes(100), random_bytes(100)
    assert store.write([one], [[span_of(a)]]) == [True]
    assert store.write([one, two, two, three], [[span_of(b)]] * 4) == [True] * 4
    found = [np.zeros(100, np.uint8) for _ in range(3)]
    assert store.read([one, two, three], [[span_of(t, writable=True)] for t in found]) == [True] * 3
    assert np.array_equal(found[0], a), "the first one stays"
    assert np.array_equal(found[1], b) and np.array_equal(found[2], b)


def test_a_page_of_another_size_is_a_miss_and_leaves_its_neighbours_alone(store: BlockStore) -> None:
    data, longer = random_bytes(100), random_bytes(160)
    assert store.write(keys(3), [[span_of(data)], [span_of(longer)], [span_of(data)]]) == [True] * 3
    targets = [np.zeros(100, np.uint8) for _ in range(3)]
    assert store.read(keys(3), [[span_of(t, writable=True)] for t in targets]) == [True, False, True]
    assert not targets[1].any()
    assert store.write(keys(2), [[span_of(data)]] * 2) == [False, False], "a key has one length"
    assert store.read(keys(2)[1:], [[span_of(longer, writable=True)]]) == [True]


def test_many_threads_may_use_one_store_while_it_is_closed(daemon: DaemonProcess) -> None:
    store = BlockStore(StoreAddress(daemon.socket_path), "tests", {"model": f"number {next(_numbers)}"})
    data = random_bytes(1000)
    wrong: list[bool] = []

    def use(number: int) -> None:
        for turn in range(30):
            key, target = bytes([number, turn] * 8), np.zeros(1000, np.uint8)
            stored = store.write([key], [[span_of(data)]])[0]
            loaded = store.read([key], [[span_of(target, writable=True)]])[0]
            wrong.append(loaded and not (stored and np.array_equal(target, data)))

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    store.close()
    for thread in threads:
        thread.join()
    assert len(wrong) == 120 and not any(wrong)
