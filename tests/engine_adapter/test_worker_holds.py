"""What a worker prefilled for a decode is there when decode comes, whatever is stored meanwhile, and free afterwards."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

from cluster_nodes import eventually
from daemon_process import DaemonProcess
from tiny_model import prompt_of, write_tiny_llama
from worker_server import WorkerServerProcess

from mooncask.client.control_client import ControlClient
from mooncask.client.hold import HAND_OVER_SECONDS
from mooncask.client.local import LocalClient
from mooncask.client.worker_api import DecodeCall, DecodeDone, PrefillCall, PrefillDone

TOKENS, CACHED = 100, 96
OPTIONS = {"load": "always", "block_tokens": "16", "prefill_chunk": "24", "slot_tokens": "1024"}
numbers = count(1)


@dataclass
class Pool:
    daemon: DaemonProcess
    prefill: WorkerServerProcess
    decode: WorkerServerProcess

    def pinned_bytes(self) -> int:
        with ControlClient(self.daemon.socket_path) as pages:
            return max(tier.pinned_bytes for tier in pages.overview().tiers)

    def crowd_out(self) -> None:
        """Stores more than the arena holds."""
        with LocalClient.connect(self.daemon.socket_path) as client:
            handle = client.open_namespace("crowd", family={"model": "crowd", "block_tokens": "16"})
            for _ in range(40):
                client.put(handle, [next(numbers).to_bytes(16, "big")], [bytes(1 << 20)])

    def cached(self, name: str, prompt: list[int]) -> int:
        """Tokens that a decode of that id finds."""
        call = DecodeCall(id=name, tokens=prompt, max_tokens=2, wait_seconds=0.2, write_back=False)
        done = self.decode.lines(call)[-1]
        assert isinstance(done, DecodeDone), done
        return done.cached_tokens


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Without a disk: what is evicted is gone."""
    folder = tmp_path_factory.mktemp("holds")
    model = write_tiny_llama(folder / "tiny")
    with ExitStack() as stack:
        daemon = stack.enter_context(DaemonProcess.start(folder, {"dram.capacity": "16 MiB", "nvme.path": ""}))
        start = WorkerServerProcess.start
        prefill = stack.enter_context(start(folder, "p1", "prefill", model, daemon.socket_path, **OPTIONS))
        decode = stack.enter_context(start(folder, "d1", "decode", model, daemon.socket_path, **OPTIONS))
        yield Pool(daemon, prefill, decode)


@pytest.mark.parametrize(("hold_seconds", "cached"), [(HAND_OVER_SECONDS, CACHED), (0.0, 0)])
def test_what_was_prefilled_for_a_decode_outlasts_a_crowd(pool: Pool, hold_seconds: float, cached: int) -> None:
    number = next(numbers)
    name, prompt = f"request-{number}", prompt_of(TOKENS, seed=number)
    done = pool.prefill.lines(PrefillCall(id=name, tokens=prompt, hold_seconds=hold_seconds))[-1]
    assert isinstance(done, PrefillDone) and done.stored_blocks == CACHED // 16
    pool.crowd_out()
    assert pool.cached(name, prompt) == cached
    eventually(lambda: pool.pinned_bytes() == 0)


def test_what_was_there_already_is_held_too(pool: Pool) -> None:
    number = next(numbers)
    name, prompt = f"request-{number}", prompt_of(TOKENS, seed=number)
    pool.prefill.lines(PrefillCall(id="somebody else's", tokens=prompt))
    done = pool.prefill.lines(PrefillCall(id=name, tokens=prompt, hold_seconds=HAND_OVER_SECONDS))[-1]
    assert isinstance(done, PrefillDone) and done.cached_tokens == CACHED
    pool.crowd_out()
    assert pool.cached(name, prompt) == CACHED
    eventually(lambda: pool.pinned_bytes() == 0)


def test_a_decode_that_is_done_before_the_prefill_says_so_leaves_no_hold(pool: Pool) -> None:
    for _ in range(5):
        number = next(numbers)
        name, prompt = f"request-{number}", prompt_of(900, seed=number)
        with pool.prefill.open(PrefillCall(id=name, tokens=prompt, hold_seconds=HAND_OVER_SECONDS)) as response:
            lines = response.iter_lines()
            next(lines), next(lines)  # admitted, started
            call = DecodeCall(id=name, tokens=prompt, max_tokens=2, wait_seconds=10, write_back=False)
            done = pool.decode.lines(call)[-1]
            assert isinstance(done, DecodeDone) and done.cached_tokens == 896
            list(lines)
        eventually(lambda: pool.pinned_bytes() == 0)


def test_a_prefill_that_was_cancelled_holds_nothing(pool: Pool) -> None:
    number = next(numbers)
    prompt = prompt_of(900, seed=number)
    pool.prefill.lines(PrefillCall(id="before", tokens=prompt[:400]))
    with pool.prefill.open(PrefillCall(id="cut off", tokens=prompt, hold_seconds=HAND_OVER_SECONDS)) as response:
        lines = response.iter_lines()
        next(lines), next(lines)
    eventually(lambda: pool.prefill.state().report.running == 0)
    state = pool.pinned_bytes()
    done = pool.cached("cut off", prompt)  # it was too late to cancel, or nothing is held
    assert state == 0 or done == 896
    eventually(lambda: pool.pinned_bytes() == 0)
