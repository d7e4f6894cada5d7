"""Scheduler and workers of the vLLM connector against a real daemon, with a small engine in torch around them."""

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")

from daemon_process import DaemonProcess
from small_engine import BLOCK_TOKENS, Request, SmallEngine, until

from mooncask.client.hashing import chain, root
from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.reservations import Reservations
from mooncask.engine_adapter.vllm.key_chain import BlockExtras
from mooncask.engine_adapter.vllm.messages import StepPlan
from mooncask.engine_adapter.vllm.scheduling import Scheduled
from mooncask.errors import Busy

names = count()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess.start(tmp_path_factory.mktemp("daemon"), {"limits.lease_max": "20s"}) as running:
        yield running


def request(blocks: int, **fields: object) -> Request:
    """Of tokens that no other request has, and half a block more than `blocks`."""
    number = next(names)
    tokens = [number * 1000 + i for i in range(blocks * BLOCK_TOKENS + BLOCK_TOKENS // 2)]
    return Request(f"r{number}", tokens, **fields)  # type: ignore[arg-type]  # Request's own fields


def again(one: Request, **fields: object) -> Request:
    return Request(f"r{next(names)}", list(one.all_token_ids), **fields)  # type: ignore[arg-type]  # as above


def stored(engine: SmallEngine, one: Request, block_ids: list[int]) -> None:
    """The engine computed the request, saved it, and is done with it."""
    engine.scheduler.arrived(one)
    assert engine.matched(one) == 0
    engine.scheduler.allocated(one, [block_ids], 0)
    engine.compute(one, block_ids)
    engine.settle()
    engine.scheduler.finished(one, aborted=False)


def load(engine: SmallEngine, one: Request, block_ids: list[int], computed: int = 0) -> int:
    """Matches and has the workers begin to load; the tokens that were promised."""
    engine.scheduler.arrived(one)
    tokens = engine.matched(one, computed)
    engine.scheduler.allocated(one, [block_ids], tokens)
    engine.step()
    return tokens


@pytest.mark.parametrize("workers", [1, 2])
def test_every_worker_loads_its_own_part_of_what_another_engine_saved(daemon: DaemonProcess, workers: int) -> None:
    one = request(3)
    with SmallEngine(daemon.socket_path, workers, seed=1) as first:
        stored(first, one, [5, 9, 2, 7])
        with SmallEngine(daemon.socket_path, workers, seed=2) as second:
            two = again(one)
            assert load(second, two, [1, 3, 4, 6]) == 3 * BLOCK_TOKENS
            assert second.settle().received == [{two.request_id}] * workers
            for rank in range(workers):
                for source, target in ((5, 1), (9, 3), (2, 4)):
                    for a, b in zip(first.block(rank, source), second.block(rank, target), strict=True):
                        assert torch.equal(a, b)
            assert second.counters.totals["loaded_blocks"] == 3 * workers
            assert second.counters.totals["load_failed_blocks"] == 0


def test_a_prefix_is_as_long_as_the_shard_that_has_least_of_it(daemon: DaemonProcess) -> None:
    one = request(3)
    with SmallEngine(daemon.socket_path, 2) as engine:
        stored(engine, one, [0, 1, 2, 3])
        two = again(one)
        engine.scheduler.arrived(two)
        evict(daemon, engine, two, block=2, shard=1)
        assert engine.matched(two) == 2 * BLOCK_TOKENS


def evict(daemon: DaemonProcess, engine: SmallEngine, one: Request, block: int, shard: int = 0) -> None:
    with LocalClient.connect(daemon.socket_path) as client:
        keys = engine.scheduler.states[one.request_id].keys()
        assert client.evict(engine.scheduler.connection.handles[shard], [keys[block]]) == 1


def test_what_the_engine_has_itself_is_not_loaded(daemon: DaemonProcess) -> None:
    one = request(4)
    with SmallEngine(daemon.socket_path) as engine:
        stored(engine, one, [0, 1, 2, 3, 4])
        before = engine.block(0, 10)
        assert load(engine, again(one), [10, 11, 12, 13, 14], computed=2 * BLOCK_TOKENS) == 2 * BLOCK_TOKENS
        engine.settle()
        assert engine.counters.totals["loaded_blocks"] == 2
        assert all(torch.equal(a, b) for a, b in zip(engine.block(0, 10), before, strict=True))


def test_a_request_under_another_salt_or_with_another_adapter_finds_nothing(daemon: DaemonProcess) -> None:
    one = request(2)
    with SmallEngine(daemon.socket_path) as engine:
        stored(engine, one, [0, 1, 2])
        assert engine.matched(again(one, cache_salt="x")) == 0
        engine.describe = lambda _: (BlockExtras(lora=b"adapter"), "")
        assert engine.matched(again(one)) == 0
        engine.describe = lambda _: (BlockExtras(), "it can't be described")
        assert engine.matched(again(one)) == 0
        assert engine.counters.totals["bypassed_requests"] == 1


def test_an_engine_of_another_family_finds_nothing(daemon: DaemonProcess) -> None:
    one = request(2)
    with SmallEngine(daemon.socket_path) as engine, SmallEngine(daemon.socket_path, model="other") as other:
        stored(engine, one, [0, 1, 2])
        assert other.matched(again(one)) == 0


def test_blocks_that_vanish_between_match_and_load_are_reported_one_by_one(daemon: DaemonProcess) -> None:
    one = request(4)
    with SmallEngine(daemon.socket_path, lease_bytes=1) as engine:  # only the first block is leased at the match
        stored(engine, one, [0, 1, 2, 3, 4])
        two = again(one)
        tokens = engine.matched(two)
        engine.scheduler.allocated(two, [[10, 11, 12, 13, 14]], tokens)
        evict(daemon, engine, two, block=2)
        engine.step()
        ended = engine.settle()
        assert ended.failed == {12, 13} and ended.received == [{two.request_id}]
        assert engine.matched(two) == 0, "a load that failed is not tried again"
        plan = engine.compute(two, [10, 11, 12, 13, 14])
        assert [(save.first, save.places) for save in plan.saves] == [(2, [(12,), (13,)])]
        engine.settle()


def test_a_request_that_waits_too_long_for_its_step_is_loaded_all_the_same(daemon: DaemonProcess) -> None:
    """Its token is void by then; the worker leases the blocks itself."""
    one = request(2)
    with SmallEngine(daemon.socket_path) as engine:
        stored(engine, one, [0, 1, 2])
        two = again(one)
        engine.scheduler.arrived(two)
        tokens = engine.matched(two)
        engine.scheduler.allocated(two, [[10, 11, 12]], tokens)
        plan = engine.scheduler.step([], (), 0)
        with LocalClient.connect(daemon.socket_path) as thief:
            thief.adopt(plan.loads[0].tokens[""]).close()
        engine.workers[0].start_loads(plan)
        engine.settle()
        assert engine.counters.totals["loaded_blocks"] == 2


def test_leases_end_with_an_abort_before_and_after_the_answer(daemon: DaemonProcess) -> None:
    one = request(3)
    with SmallEngine(daemon.socket_path) as engine, LocalClient.connect(daemon.socket_path) as client:
        stored(engine, one, [0, 1, 2, 3])
        two = again(one)
        assert engine.matched(two) == 3 * BLOCK_TOKENS
        assert leased(client) > 0
        assert engine.scheduler.finished(two, aborted=True) == (False, None)
        until(lambda: leased(client) == 0, "released")
        three = again(one)
        engine.scheduler.matched(three, 0)
        engine.scheduler.finished(three, aborted=True)
        until(lambda: leased(client) == 0, "released")
        assert not engine.scheduler.states


def leased(client: LocalClient) -> int:
    return sum(tier.leased_bytes for tier in client.status().tiers)


def test_a_finished_requests_blocks_are_kept_until_its_saves_are_done(daemon: DaemonProcess) -> None:
    one = request(3)
    with SmallEngine(daemon.socket_path) as engine:
        engine.scheduler.arrived(one)
        engine.matched(one)
        engine.scheduler.allocated(one, [[0, 1, 2, 3]], 0)
        daemon.freeze()
        try:
            engine.compute(one, [0, 1, 2, 3])
            assert engine.scheduler.finished(one, aborted=False) == (True, None)
            plan = engine.step()
            assert plan.released == {one.request_id}
            assert engine.collect(plan).sent == [set()]
        finally:
            daemon.thaw()
        assert engine.settle().sent == [{one.request_id}]


def test_a_preempted_requests_blocks_are_not_read_any_more_when_the_step_begins(daemon: DaemonProcess) -> None:
    one = request(3)
    with SmallEngine(daemon.socket_path) as engine:
        engine.scheduler.arrived(one)
        engine.matched(one)
        engine.scheduler.allocated(one, [[0, 1, 2, 3]], 0)
        daemon.freeze()
        try:
            engine.compute(one, [0, 1, 2, 3])
            engine.step(preempted=(one.request_id,))
            for tensor in engine.tensors[0].values():
                tensor.fill_(float("nan"))  # the blocks are another request's now
        finally:
            daemon.thaw()
        engine.settle()
        one.num_preemptions = 1
        assert engine.matched(one) == 0
        assert engine.counters.totals["dropped_blocks"] == 3
        assert engine.counters.totals["saved_blocks"] == 0


def test_a_daemon_that_does_not_answer_holds_a_request_back_for_its_deadline_and_then_no_other(
    daemon: DaemonProcess,
) -> None:
    with SmallEngine(daemon.socket_path, deadline_ms=100) as engine:
        daemon.freeze()
        try:
            for _ in range(5):
                assert engine.matched(request(2)) == 0
            assert engine.counters.totals["lookups"] <= 4
            assert engine.scheduler.connection.faults
            assert engine.counters.totals["store_faults"] > 0
        finally:
            daemon.thaw()


def test_a_prefill_engine_hands_over_and_a_decode_engine_waits_for_what_is_still_being_written(
    daemon: DaemonProcess,
) -> None:
    with SmallEngine(daemon.socket_path, role="writes") as prefill, SmallEngine(daemon.socket_path) as decode:
        one = request(3, kv_transfer_params={"do_remote_decode": True})
        prefill.scheduler.arrived(one)
        prefill.scheduler.allocated(one, [[0, 1, 2, 3]], 0)
        plan = prefill.scheduler.step([Scheduled(one.request_id, 0, 56, [[0, 1, 2, 3]], True)], (), 56)
        kept, params = prefill.scheduler.finished(one, aborted=False)
        assert kept and params is not None
        assert params["do_remote_prefill"] is True and params["mooncask"]["n_blocks"] == 3
        two = again(one, kv_transfer_params=params)
        assert decode.scheduler.matched(two, 0) is None
        prefill.workers[0].start_saves(plan)
        assert load(decode, two, [4, 5, 6, 7]) == 3 * BLOCK_TOKENS
        decode.settle()
        assert decode.counters.totals["loaded_blocks"] == 3
        prefill.settle()
        wrong = again(one, kv_transfer_params={"mooncask": {**params["mooncask"], "family": "0" * 32}})
        decode.matched(wrong)
        assert decode.counters.totals["refused_handovers"] == 1


def test_who_asks_for_a_description_can_make_the_keys_of_what_is_stored(daemon: DaemonProcess) -> None:
    with SmallEngine(daemon.socket_path, role="reads") as decode, SmallEngine(daemon.socket_path) as engine:
        asking = request(0, kv_transfer_params={"mooncask": {"describe": True}})
        decode.settle()
        decode.scheduler.arrived(asking)
        params = decode.scheduler.finished(asking, aborted=False)[1]
        assert params is not None
        told = params["mooncask"]["hashing"]
        one = request(3, cache_salt="s")
        stored(engine, one, [0, 1, 2, 3])
        first = root(bytes.fromhex(told["fingerprint"]), bytes.fromhex(told["tenant_salt"]) + b"s", told["hash"])
        keys = chain(first, one.all_token_ids, told["block_tokens"], hash=told["hash"])
        with LocalClient.connect(daemon.socket_path) as client:
            handle = engine.scheduler.connection.handles[0]
            assert handle.name == told["namespace"]
            assert len(client.match(handle, keys)) == 3


def test_a_store_without_room_holds_the_engines_blocks_back_for_one_deadline_and_not_for_each_save(
    daemon: DaemonProcess,
) -> None:
    with SmallEngine(daemon.socket_path, deadline_ms=200) as engine, LocalClient.connect(daemon.socket_path) as thief:
        handle = engine.scheduler.connection.handles[0]
        keys = [bytes([255, i]) * 8 for i in range(44)]
        with thief.reserve(handle, keys, [1 << 20] * 44):
            full = Reserved(thief, handle)
            requests = [request(2) for _ in range(20)]
            started = time.monotonic()
            for one in requests:
                engine.scheduler.arrived(one)
                engine.compute(one, [0, 1, 2])
            engine.settle()
            assert time.monotonic() - started < 20 * 0.2 / 2
            assert engine.counters.totals["dropped_blocks"] == 40
            full.close()
        until(lambda: engine.workers[0].connection.has_room, "asking again")
        stored(engine, request(2), [0, 1, 2])
        assert engine.counters.totals["saved_blocks"] == 2


class Reserved:
    """Takes what is left of the room that reservations may have, down to a block."""

    def __init__(self, client: LocalClient, handle: NamespaceHandle) -> None:
        self._held: list[Reservations] = []
        for size in (1 << 20, 1 << 16, 4096):
            for number in range(64):
                try:
                    key = b"%7d" % size + b"%9d" % number
                    self._held.append(client.reserve(handle, [key], [size], deadline_seconds=0.01))
                except Busy:
                    break

    def close(self) -> None:
        for one in self._held:
            one.close()


def test_tokens_are_published_when_that_is_wanted_and_never_those_of_a_salted_request(daemon: DaemonProcess) -> None:
    with SmallEngine(daemon.socket_path, publish_tokens=True) as engine, SmallEngine(daemon.socket_path) as quiet:
        for one, told in ((engine, True), (quiet, False)):
            plain, salted = request(2), request(2, cache_salt="x")
            one.scheduler.arrived(plain)
            one.scheduler.arrived(salted)
            (save,) = one.compute(plain, [0, 1, 2]).saves
            tokens = plain.all_token_ids
            assert save.published_tokens == (
                [tokens[:BLOCK_TOKENS], tokens[BLOCK_TOKENS : 2 * BLOCK_TOKENS]] if told else []
            )
            assert one.compute(salted, [3, 4, 5]).saves[0].published_tokens == []
            one.settle()
            assert one.counters.totals["saved_blocks"] == 4


def test_an_engine_that_was_reset_finds_nothing_of_before_and_its_own_of_after(daemon: DaemonProcess) -> None:
    one = request(2)
    with SmallEngine(daemon.socket_path) as engine, SmallEngine(daemon.socket_path) as other:
        stored(engine, one, [0, 1, 2])
        running = again(one)
        engine.scheduler.arrived(running)
        engine.scheduler.reset()
        assert engine.matched(running) == 0
        engine.compute(running, [3, 4, 5])
        engine.settle()
        assert engine.matched(again(one)) == 2 * BLOCK_TOKENS
        assert engine.counters.totals["saved_blocks"] == 4
        later = request(1)
        stored(engine, later, [6, 7])
        assert other.matched(later) == 0


def test_kv_of_before_a_reset_is_not_saved_until_all_of_the_request_is_computed_anew(daemon: DaemonProcess) -> None:
    one = request(3)
    with SmallEngine(daemon.socket_path) as engine:
        engine.scheduler.arrived(one)
        engine.compute(one, [0, 1, 2, 3], tokens=2 * BLOCK_TOKENS)
        engine.settle()
        assert engine.counters.totals["saved_blocks"] == 2
        engine.scheduler.reset()
        assert engine.compute(one, [0, 1, 2, 3]).saves == []
        assert engine.matched(again(one)) == 0
        engine.step(preempted=(one.request_id,))
        engine.compute(one, [4, 5, 6, 7])
        engine.settle()
        assert engine.matched(again(one)) == 3 * BLOCK_TOKENS


def test_a_prompt_of_more_blocks_than_one_request_takes_is_saved_and_loaded(daemon: DaemonProcess) -> None:
    blocks = 4100
    one = request(blocks)
    with SmallEngine(daemon.socket_path, blocks=blocks + 1, deadline_ms=5000) as engine:
        ids = list(range(blocks + 1))
        stored(engine, one, ids)
        assert engine.counters.totals["saved_blocks"] == blocks
        assert load(engine, again(one), ids) == blocks * BLOCK_TOKENS
        engine.settle()
        assert engine.counters.totals["loaded_blocks"] == blocks


def test_an_engine_starts_without_a_daemon_and_uses_it_when_it_comes(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path) as daemon:
        daemon.stop()
        engine = SmallEngine.__new__(SmallEngine)
        engine.connected = lambda: None  # type: ignore[method-assign]  # there is nothing to connect to yet
        engine.__init__(daemon.socket_path)  # type: ignore[misc]  # made in two steps for the line above
        with engine:
            early = request(2)
            engine.scheduler.arrived(early)
            assert engine.matched(early) == 0
            daemon.run()

            def saved() -> bool:
                engine.compute(early, [0, 1, 2])
                engine.settle()
                return engine.counters.totals["saved_blocks"] == 2

            until(saved, "saved")
            assert engine.matched(again(early)) == 2 * BLOCK_TOKENS


def test_a_step_without_tokens_waits_a_little_instead_of_asking_at_once(daemon: DaemonProcess) -> None:
    assert StepPlan().computes is True
    with SmallEngine(daemon.socket_path) as engine:
        assert engine.step().computes is False
