"""A decode engine that is sent its request when the prefill begins: it loads blocks as they come, against a real daemon."""

import asyncio
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")

from cluster_nodes import ClusterNodes
from daemon_process import DaemonProcess
from small_engine import BLOCK_TOKENS, Request, SmallEngine, until

from mooncask.client.socket_path import http_socket_path
from mooncask.client.worker_api import Hashing, Node, Registration, Role, WorkerKind
from mooncask.conductor.serving.dispatch.pools import Pools
from mooncask.conductor.serving.dispatch.prefixes import Prefixes
from mooncask.engine_adapter.vllm.handover import HandOver, named_by_caller

names = count()
NAME = "ab12"
BLOCKS = 4


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess.start(tmp_path_factory.mktemp("daemon"), {"limits.lease_max": "20s"}) as running:
        yield running


def prompt(params: dict[str, Any] | None, tokens: list[int] | None = None) -> Request:
    number = next(names)
    new = [number * 1000 + i for i in range(BLOCKS * BLOCK_TOKENS + BLOCK_TOKENS // 2)]
    return Request(f"r{number}", tokens or new, kv_transfer_params=params)


def to_prefill() -> Request:
    return prompt({"do_remote_decode": True, "mooncask": {"handover_id": NAME}})


def to_decode(engine: SmallEngine, one: Request, wait_seconds: float) -> Request:
    """As a router tells it that knows how keys are made."""
    keys = engine.scheduler.states[one.request_id].keys()
    family = engine.scheduler.connection.handles[0].fingerprint.hex()
    told = HandOver(family, keys[-1].hex(), len(keys), "", NAME).params(remote_decode=True)
    told["mooncask"]["wait_seconds"] = wait_seconds
    return prompt(told, list(one.all_token_ids))


def begin(engine: SmallEngine, one: Request, block_ids: list[int]) -> None:
    """The request has come; no step computes it yet."""
    engine.scheduler.arrived(one)
    assert engine.matched(one) == 0
    engine.scheduler.allocated(one, [block_ids], 0)


def load(engine: SmallEngine, one: Request, block_ids: list[int]) -> int:
    engine.scheduler.arrived(one)
    tokens = engine.matched(one)
    engine.scheduler.allocated(one, [block_ids], tokens)
    engine.step()
    return tokens


def gather(engine: SmallEngine, received: set[str]) -> set[str]:
    received.update(*engine.collect().received)
    return received


def seen(daemon: DaemonProcess, engine: SmallEngine, one: Request, seconds: float) -> bool:
    """What a Conductor sees of it in the store."""

    async def ask() -> bool:
        prefixes, pools = Prefixes(5.0), Pools()
        told = {name: value for name, value in engine.scheduler.requests.hashing().items() if name != "family"}
        registration = Registration(
            name="p", incarnation="1", address="http://127.0.0.1:1", role=Role.PREFILL, kind=WorkerKind.VLLM, model="m",
            family={}, hashing=Hashing(**told), positions_max=1, node=Node(name="n", pages=f"unix:{http_socket_path(daemon.socket_path)}"),
        )  # fmt: skip
        pools.register(registration, time.monotonic())
        try:
            return await prefixes.begun(pools.all()[0], engine.scheduler.states[one.request_id].keys(), seconds)
        finally:
            await prefixes.close()

    return asyncio.run(ask())


def test_decode_loads_what_prefill_has_only_begun_to_compute(daemon: DaemonProcess) -> None:
    with (
        SmallEngine(daemon.socket_path, seed=1) as prefill,
        SmallEngine(daemon.socket_path, seed=2, threads=1) as decode,
    ):
        one, ids = to_prefill(), [5, 9, 2, 7, 1]
        begin(prefill, one, ids)
        assert not seen(daemon, prefill, one, 0.3), "one that waits for its turn is taken to have begun"
        prefill.compute(one, ids, 2 * BLOCK_TOKENS)
        assert seen(daemon, prefill, one, 20.0)
        two = to_decode(prefill, one, wait_seconds=60.0)
        assert load(decode, two, [11, 12, 13, 14, 15]) == BLOCKS * BLOCK_TOKENS
        three = prompt(None)  # what is there is loaded meanwhile, by the only thread for that
        begin(prefill, three, [21, 22, 23, 24, 25])
        prefill.compute(three, [21, 22, 23, 24, 25])
        until(lambda: prefill.collect() is not None and not prefill.workers[0]._saves, "saved")
        assert load(decode, again := prompt(None, list(three.all_token_ids)), [31, 32, 33, 34, 35]) > 0
        received: set[str] = set()
        until(lambda: bool(gather(decode, received)), "the other load is over")
        assert received == {again.request_id}
        prefill.compute(one, ids)
        assert decode.settle().received == [{two.request_id}]
        assert decode.counters.totals["load_failed_blocks"] == 0
        assert decode.counters.totals["early_handovers"] == 1
        for source, target in zip(ids[:BLOCKS], [11, 12, 13, 14], strict=True):
            for a, b in zip(prefill.block(0, source), decode.block(0, target), strict=True):
                assert torch.equal(a, b)
        prefill.settle()


def test_decode_at_another_node_loads_blocks_as_they_are_saved_at_the_first(tmp_path: Path) -> None:
    with ClusterNodes(tmp_path) as nodes:
        near, far = nodes.start("n1", "n2")
        there, here = near.daemon, far.daemon
        with SmallEngine(there.socket_path, seed=1) as prefill, SmallEngine(here.socket_path, seed=2) as decode:
            one, ids = to_prefill(), [5, 9, 2, 7, 1]
            begin(prefill, one, ids)
            prefill.compute(one, ids, 2 * BLOCK_TOKENS)
            assert seen(there, prefill, one, 20.0)
            two = to_decode(prefill, one, wait_seconds=60.0)
            assert load(decode, two, [11, 12, 13, 14, 15]) == BLOCKS * BLOCK_TOKENS
            until(
                lambda: far.counters().get("peer_blocks_pulled", 0) > 0,
                "the first blocks come while the others are computed",
            )
            assert decode.workers[0]._loads
            prefill.compute(one, ids)
            assert decode.settle().received == [{two.request_id}]
            assert decode.counters.totals["load_failed_blocks"] == 0
            for source, target in zip(ids[:BLOCKS], [11, 12, 13, 14], strict=True):
                for a, b in zip(prefill.block(0, source), decode.block(0, target), strict=True):
                    assert torch.equal(a, b)
            prefill.settle()


def test_a_prefill_that_is_aborted_ends_the_wait_and_what_came_is_kept(daemon: DaemonProcess) -> None:
    with SmallEngine(daemon.socket_path) as prefill, SmallEngine(daemon.socket_path) as decode:
        one, ids = to_prefill(), [5, 9, 2, 7, 1]
        begin(prefill, one, ids)
        prefill.compute(one, ids, 2 * BLOCK_TOKENS)
        assert seen(daemon, prefill, one, 20.0)
        prefill.settle()
        two = to_decode(prefill, one, wait_seconds=300.0)
        assert load(decode, two, [11, 12, 13, 14, 15]) == BLOCKS * BLOCK_TOKENS
        began = time.monotonic()
        prefill.scheduler.finished(one, aborted=True)
        ended = decode.settle()
        assert time.monotonic() - began < 15
        assert ended.received == [{two.request_id}] and ended.failed == {13, 14}
        assert decode.counters.totals["loaded_blocks"] == 2


def test_a_prefill_that_stands_still_is_waited_for_as_long_as_the_router_says(daemon: DaemonProcess) -> None:
    with SmallEngine(daemon.socket_path) as prefill, SmallEngine(daemon.socket_path) as decode:
        one, ids = to_prefill(), [5, 9, 2, 7, 1]
        begin(prefill, one, ids)
        prefill.compute(one, ids, BLOCK_TOKENS)
        assert seen(daemon, prefill, one, 20.0)
        prefill.settle()  # or decode has half a second for its saving too
        assert load(decode, two := to_decode(prefill, one, wait_seconds=0.5), [11, 12, 13, 14, 15]) > 0
        ended = decode.settle()
        assert ended.received == [{two.request_id}] and ended.failed == {12, 13, 14}
        prefill.settle()


def test_what_has_come_is_loaded_though_the_daemon_was_too_busy_to_say_so_in_time(daemon: DaemonProcess) -> None:
    with SmallEngine(daemon.socket_path) as prefill, SmallEngine(daemon.socket_path, deadline_ms=20_000) as decode:
        one, ids = to_prefill(), [5, 9, 2, 7, 1]
        begin(prefill, one, ids)
        prefill.compute(one, ids, BLOCK_TOKENS)
        assert seen(daemon, prefill, one, 20.0)
        prefill.settle()
        decode.workers[0].connection.open()
        two = to_decode(prefill, one, wait_seconds=0.5)
        decode.scheduler.arrived(two)
        decode.scheduler.allocated(two, [[11, 12, 13, 14, 15]], decode.matched(two))
        daemon.freeze()
        try:
            decode.step()
            began = time.monotonic()
            until(lambda: time.monotonic() > began + 1.5, "too late")
        finally:
            daemon.thaw()
        ended = decode.settle()
        assert ended.received == [{two.request_id}] and ended.failed == {12, 13, 14}


def test_what_a_prefill_could_not_save_is_waited_for_until_it_ends(daemon: DaemonProcess) -> None:
    with SmallEngine(daemon.socket_path, save_backlog_max=1) as prefill, SmallEngine(daemon.socket_path) as decode:
        one, ids, may_save = to_prefill(), [5, 9, 2, 7, 1], threading.Event()
        prefill.workers[0]._savers.submit(may_save.wait, 20.0)
        begin(prefill, one, ids)
        prefill.compute(one, ids, 2 * BLOCK_TOKENS)
        prefill.compute(one, ids)
        assert prefill.counters.totals["dropped_blocks"] == 2
        assert seen(daemon, prefill, one, 20.0)
        two = to_decode(prefill, one, wait_seconds=300.0)
        assert load(decode, two, [11, 12, 13, 14, 15]) == BLOCKS * BLOCK_TOKENS
        prefill.scheduler.finished(one, aborted=False)
        assert not decode.collect().received[0], "what is still being saved is waited for"
        may_save.set()
        prefill.settle()
        ended = decode.settle()
        assert ended.received == [{two.request_id}] and ended.failed == {13, 14}
        assert not prefill.scheduler.requests._announced


def test_what_two_prompts_announce_is_taken_back_with_the_second(daemon: DaemonProcess) -> None:
    with SmallEngine(daemon.socket_path) as prefill:
        one = to_prefill()
        two, third = (
            Request(f"{one.request_id}{i}", one.all_token_ids, kv_transfer_params=one.kv_transfer_params) for i in "bc"
        )
        for each, ids in ((one, [5, 9, 2, 7, 1]), (two, [11, 12, 13, 14, 15]), (third, [21, 22, 23, 24, 25])):
            begin(prefill, each, ids)
        prefill.compute(one, [5, 9, 2, 7, 1], 1)
        prefill.compute(two, [11, 12, 13, 14, 15], 1)
        prefill.scheduler.finished(one, aborted=True)
        until_told(prefill)
        # What is taken back ends a millisecond later: less than it takes to ask once.
        assert [seen(daemon, prefill, third, 0.3) for _ in range(2)] == [True, True]
        prefill.scheduler.finished(two, aborted=True)
        until(lambda: not seen(daemon, prefill, third, 0.05), "taken back")
        assert not prefill.scheduler.requests._announced


def until_told(engine: SmallEngine) -> None:
    """What it had to announce, or to take back."""
    told = threading.Event()
    engine.scheduler.lookups.in_order("nothing", told.set)
    assert told.wait(20.0)


def test_what_takes_an_announcement_back_does_not_overtake_it(daemon: DaemonProcess) -> None:
    with SmallEngine(daemon.socket_path) as engine:
        lookups, may_go, said = engine.scheduler.lookups, threading.Event(), list[str]()
        lookups.in_order("one", lambda: said.append("one" if may_go.wait(20.0) else "late"))
        lookups.in_order("two", lambda: said.append("two"))
        lookups.in_background("beside", lambda: said.append("beside")).result(20.0)
        may_go.set()
        until_told(engine)
        assert said == ["beside", "one", "two"]


def test_an_engine_ends_though_it_waits_for_another_one_s_computing(daemon: DaemonProcess) -> None:
    with SmallEngine(daemon.socket_path) as prefill:
        one, ids = to_prefill(), [5, 9, 2, 7, 1]
        begin(prefill, one, ids)
        prefill.compute(one, ids, 2 * BLOCK_TOKENS)
        prefill.settle()
        with SmallEngine(daemon.socket_path) as decode:
            load(decode, to_decode(prefill, one, wait_seconds=300.0), [11, 12, 13, 14, 15])
            until(lambda: bool(decode.workers[0].connection.handles), "connected")
            began = time.monotonic()
        assert time.monotonic() - began < 15


def test_a_prefill_s_reply_has_the_name_that_the_router_gave_its_hand_over(daemon: DaemonProcess) -> None:
    with SmallEngine(daemon.socket_path, role="writes") as prefill:
        one, ids = to_prefill(), [5, 9, 2, 7, 1]
        begin(prefill, one, ids)
        prefill.compute(one, ids)
        prefill.settle()
        _, told = prefill.scheduler.finished(one, aborted=False)
        assert told is not None and told["mooncask"]["handover_id"] == NAME
        assert told["mooncask"]["n_blocks"] == BLOCKS
    for wrong in ("", "XY", "ab" * 40, 7, None):
        assert named_by_caller({"mooncask": {"handover_id": wrong}}) == ""


def test_numbers_that_are_too_large_for_anything_end_no_engine() -> None:
    told = {"family": "f", "keys_digest": "d", "n_blocks": 1, "node": "", "handover_id": "a", "wait_seconds": 10**400}
    found = HandOver.read({"mooncask": told})
    assert found is not None and found.wait_seconds == 600.0
    assert HandOver.read({"mooncask": {**told, "n_blocks": 10**5000}}) is None


@pytest.mark.parametrize("told", [-1, 0, "5", None, True, [1]])
def test_a_time_that_is_none_is_no_early_hand_over(told: object) -> None:
    params = {
        "mooncask": {
            "family": "f",
            "keys_digest": "d",
            "n_blocks": 1,
            "node": "",
            "handover_id": "a",
            "wait_seconds": told,
        }
    }
    found = HandOver.read(params)
    assert found is not None and found.wait_seconds == (1.0 if told is True else 0.0)
