"""What a prefill engine handed over is still there when decode comes, whatever is stored meanwhile, and free afterwards."""

import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")

from daemon_process import DaemonProcess
from small_engine import BLOCK_TOKENS, Request, SmallEngine, until

from mooncask.client.control_client import ControlClient
from mooncask.client.local import LocalClient
from mooncask.engine_adapter.handover_hold import HandOverHold

names = count()
IDS = [0, 1, 2, 3]
ASKED = {"do_remote_decode": True}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Without a disk: what is evicted is gone."""
    with DaemonProcess.start(
        tmp_path_factory.mktemp("daemon"), {"dram.capacity": "16 MiB", "nvme.path": ""}
    ) as running:
        yield running


def request(params: dict[str, Any] | None = None) -> Request:
    number = next(names)
    tokens = [number * 1000 + i for i in range(3 * BLOCK_TOKENS + 5)]
    return Request(f"r{number}", tokens, kv_transfer_params=params)


def prefilled(engine: SmallEngine, one: Request) -> dict[str, Any]:
    """Its reply's params, while it is being saved."""
    engine.scheduler.arrived(one)
    engine.scheduler.allocated(one, [IDS], 0)
    engine.compute(one, IDS)
    params = engine.scheduler.finished(one, aborted=False)[1]
    assert params is not None
    engine.settle()
    return params


def pins(engine: SmallEngine, one: Request) -> list[int]:
    """Of the request's blocks that are there."""
    keys = engine.scheduler.requests.of(Request(f"look{next(names)}", list(one.all_token_ids))).keys()
    handle = engine.scheduler.connection.handles[0]
    with ControlClient(engine.scheduler.settings.socket) as pages:
        return [pages.block(handle.name, key).pins for key in keys]


def crowd_out(engine: SmallEngine) -> None:
    """Stores more than the arena holds."""
    handle = engine.scheduler.connection.handles[0]
    with LocalClient.connect(engine.scheduler.settings.socket) as client:
        for number in range(40):
            client.put(handle, [b"crowd %10d" % number], [bytes(1 << 20)])


def test_handed_over_blocks_stay_until_decode_has_loaded_them(daemon: DaemonProcess) -> None:
    with SmallEngine(daemon.socket_path, role="writes") as prefill, SmallEngine(daemon.socket_path) as decode:
        one = request(ASKED)
        params = prefilled(prefill, one)
        until(lambda: pins(prefill, one) == [1, 1, 1], "held")
        crowd_out(prefill)
        two = Request(f"d{next(names)}", list(one.all_token_ids), kv_transfer_params=params)
        decode.scheduler.arrived(two)
        tokens = decode.matched(two)
        assert tokens == 3 * BLOCK_TOKENS
        decode.scheduler.allocated(two, [IDS], tokens)
        decode.step()
        decode.settle()
        assert decode.counters.totals["loaded_blocks"] == 3
        until(lambda: pins(prefill, one) == [0, 0, 0], "let go")


def test_a_hold_that_decode_ends_before_all_is_saved_is_not_made_again(daemon: DaemonProcess) -> None:
    with SmallEngine(daemon.socket_path, role="writes") as prefill:
        for number, ended in enumerate((True, False)):
            name = f"ab{number}"
            one = request({**ASKED, "mooncask": {"handover_id": name}})
            prefill.scheduler.arrived(one)
            prefill.scheduler.allocated(one, [IDS], 0)
            prefill.compute(one, IDS)
            if ended:
                prefill.scheduler.holds.loaded(name)
            prefill.scheduler.finished(one, aborted=False)
            prefill.settle()
            told = threading.Event()
            prefill.scheduler.lookups.in_order("nothing", told.set)
            assert told.wait(20.0)
            assert pins(prefill, one) == ([0, 0, 0] if ended else [1, 1, 1])


def test_what_nobody_asked_to_hand_over_is_not_held(daemon: DaemonProcess) -> None:
    with SmallEngine(daemon.socket_path, role="writes") as prefill:
        one, other = request(), request(ASKED)
        assert prefilled(prefill, one)["mooncask"]["n_blocks"] == 3
        prefilled(prefill, other)
        until(lambda: pins(prefill, other) == [1, 1, 1], "held")
        assert pins(prefill, one) == [0, 0, 0]


def test_a_hold_that_is_refused_costs_the_engine_nothing(daemon: DaemonProcess) -> None:
    with SmallEngine(daemon.socket_path, role="writes") as prefill:
        prefill.scheduler.holds.close()
        prefill.scheduler.holds._hold = HandOverHold("/nowhere/mooncask.sock", 1.0)
        prefilled(prefill, request(ASKED))
        until(lambda: prefill.scheduler.holds._hold._said, "refused")
        assert prefill.scheduler.connection.usable and not prefill.scheduler.connection.faults
