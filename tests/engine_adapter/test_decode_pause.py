"""Decode stands still on demand: between two steps, for a bounded time, and no token is lost, doubled or another one."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import msgspec
import requests
import torch
from daemon_process import DaemonProcess
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import prompt_of, write_tiny_llama
from worker_server import SECRET, WorkerServerProcess

from mooncask.client.worker_api import PAUSE_SECONDS_MAX, DecodeCall, DecodeDone, StreamLine, Tokens
from mooncask.engine_adapter.transformers.model import Model, load_model
from mooncask.engine_adapter.transformers.server.stand_still import StandStill

OPTIONS = {"load": "always", "block_tokens": "16", "slots": "4", "slot_tokens": "1024"}
TRIES = 5
"""A machine that is busy for a moment makes one late; what never happens shows in all of them."""


@dataclass
class Server:
    model: Model
    worker: WorkerServerProcess

    def pause(self, body: object, secret: str = SECRET) -> requests.Response:
        headers = {"Authorization": f"Bearer {secret}"}
        return requests.post(
            f"{self.worker.address}/v1/pause", data=msgspec.json.encode(body), headers=headers, timeout=10
        )

    def paused(self, seconds: float) -> float:
        """What the worker says that it does of it."""
        response = self.pause({"seconds": seconds})
        assert response.status_code == 200, response.text
        return float(response.json()["seconds"])

    def reference(self, call: DecodeCall) -> list[int]:
        tokens, answer = list(call.tokens), list[int]()
        for _ in range(call.max_tokens):
            with torch.inference_mode():
                answer.append(int(self.model.module(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
            tokens.append(answer[-1])
        return answer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("pause")
    model = write_tiny_llama(folder / "tiny")
    with (
        DaemonProcess.start(folder) as daemon,
        WorkerServerProcess.start(folder, "d1", "decode", model, daemon.socket_path, **OPTIONS) as worker,
    ):
        yield Server(load_model(model, "float32", 16), worker)


def call(name: str, max_tokens: int) -> DecodeCall:
    return DecodeCall(id=name, tokens=prompt_of(20, seed=len(name)), max_tokens=max_tokens)


def read(response: requests.Response) -> Iterator[StreamLine]:
    """Lines as they come."""
    for line in response.iter_lines(chunk_size=1):
        if line:
            yield msgspec.json.decode(line, type=StreamLine)


def first_token(lines: Iterator[StreamLine]) -> int:
    return next(line.tokens[0] for line in lines if isinstance(line, Tokens))


def test_an_answer_that_was_stopped_again_and_again_is_the_one_that_it_would_have_been(server: Server) -> None:
    answers = [call(f"stopped {'x' * i}", 60) for i in range(3)]
    with ThreadPoolExecutor(4) as threads:
        told = [threads.submit(server.worker.lines, one) for one in answers]
        stopped = 0.0
        while not all(one.done() for one in told):
            stopped += server.paused(0.05)
    for one, future in zip(answers, told, strict=True):
        tokens = [token for line in future.result() if isinstance(line, Tokens) for token in line.tokens]
        assert tokens == server.reference(one)
    assert stopped > 0


def test_a_batch_stands_still_for_as_long_as_it_says(server: Server) -> None:
    with server.worker.open(call("still", 900)) as response:
        lines = read(response)
        first_token(lines)
        began, granted = time.monotonic(), server.paused(0.6)
        assert granted == pytest.approx(0.6, abs=0.01)
        came = []
        for line in lines:
            came.append(time.monotonic() - began)
            if came[-1] > 0.6 or isinstance(line, DecodeDone):
                break
        gaps = [after - before for before, after in zip([0.0, *came], came, strict=False)]
        assert max(gaps) > 0.4, came  # what was told before is read first


def test_a_pause_ends_when_it_is_taken_back(server: Server) -> None:
    for number in range(TRIES):
        with server.worker.open(call(f"back {number}", 900)) as response:
            lines = read(response)
            first_token(lines)
            began = time.monotonic()
            assert server.paused(PAUSE_SECONDS_MAX) > 0
            server.worker.state()  # the step that ran has ended by now, or counts as one more below
            before = server.worker.state().report.context_tokens
            assert server.paused(0.0) == 0.0
            while server.worker.state().report.context_tokens < before + 2:
                assert time.monotonic() - began < 20
            if time.monotonic() - began < PAUSE_SECONDS_MAX:
                return
    pytest.fail("it stood still although that was taken back")


def test_who_asks_for_ever_gets_a_step_at_least_every_second(server: Server) -> None:
    with server.worker.open(call("for ever", 900)) as response, ThreadPoolExecutor(1) as threads:
        lines = read(response)
        first_token(lines)
        until = time.monotonic() + 3 * PAUSE_SECONDS_MAX + 0.5

        def ask() -> None:
            while time.monotonic() < until:
                assert server.paused(PAUSE_SECONDS_MAX) <= PAUSE_SECONDS_MAX

        asking = threads.submit(ask)
        began, count = time.monotonic(), 0
        while time.monotonic() < until and not isinstance(next(lines), DecodeDone):
            count += 1
        asking.result()
        assert count >= 3, f"{count} steps in {time.monotonic() - began:.1f} s"


def test_an_answer_that_nobody_wants_any_more_ends_while_the_batch_stands_still(server: Server) -> None:
    for number in range(TRIES):
        response = server.worker.open(call(f"unwanted {number}", 900))
        lines = read(response)  # a reader that is dropped closes its connection
        first_token(lines)
        began = time.monotonic()
        assert server.paused(PAUSE_SECONDS_MAX) > 0
        response.close()
        while server.worker.state().report.requests:
            assert time.monotonic() - began < 20
        if time.monotonic() - began < PAUSE_SECONDS_MAX - 0.1:
            return
    pytest.fail("its place was free only when the pause was over")


def test_a_pause_that_is_taken_back_when_nobody_decodes_any_more_keeps_nobody_waiting(server: Server) -> None:
    for number in range(TRIES):
        response = server.worker.open(call(f"gone {number}", 900))
        lines = read(response)
        first_token(lines)
        began = time.monotonic()
        assert server.paused(PAUSE_SECONDS_MAX) > 0
        response.close()
        while server.worker.state().report.requests:
            assert time.monotonic() - began < 20
        assert server.paused(0.0) == 0.0
        assert isinstance(server.worker.lines(call(f"next {number}", 1))[-1], DecodeDone)
        if time.monotonic() - began < PAUSE_SECONDS_MAX - 0.1:
            return
    pytest.fail("it stood still although that was taken back")


def test_who_decodes_nothing_does_nothing_of_it(server: Server) -> None:
    while server.worker.state().report.requests:
        pass
    assert server.paused(PAUSE_SECONDS_MAX) == 0.0
    assert server.worker.lines(one := call("after", 5))[-1].output_tokens == one.max_tokens  # type: ignore[union-attr]


@pytest.mark.parametrize("body", [{"seconds": -1}, {"seconds": PAUSE_SECONDS_MAX + 0.1}, {"seconds": "long"}, {}, []])
def test_what_is_no_pause_is_refused(server: Server, body: object) -> None:
    assert server.pause(body).status_code == 400


def test_only_who_knows_the_secret_may_stop_a_worker(server: Server) -> None:
    assert server.pause({"seconds": 0.1}, secret="guessed").status_code == 401


def test_what_a_prompt_took_leaves_out_the_time_in_which_decode_stood_still(server: Server) -> None:
    """The price of computing prompts is learned from it."""
    with contextlib.ExitStack() as stack:
        beside = stack.enter_context(server.worker.open(call("beside", 900)))
        lines = read(beside)
        first_token(lines)
        assert server.paused(PAUSE_SECONDS_MAX) > 0
        done = server.worker.lines(call("measured", 1))[-1]
        assert isinstance(done, DecodeDone)
        assert 0 < done.prompt_seconds < PAUSE_SECONDS_MAX - 0.2


# --- the bound ---


def test_what_is_taken_back_shortens_no_later_pause() -> None:
    still = StandStill()
    assert still.ask(0.0, 1.0) == 0.0
    assert still.ask(1.0, 1.5) == 1.0


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(0, PAUSE_SECONDS_MAX), st.floats(0, 0.7)), max_size=30))
def test_between_two_steps_nobody_stands_still_for_longer_than_the_bound(asked: list[tuple[float, float]]) -> None:
    still, now, stepped = StandStill(), 0.0, 0.0
    for seconds, passed in asked:
        assert 0 <= still.ask(seconds, now) <= seconds + 1e-9
        left = still.left_seconds(now)
        if passed >= left:
            still.stands(now)
            now += left
            still.goes_on(now)
            assert now - stepped <= PAUSE_SECONDS_MAX + 1e-9 or left == 0
            still.stepped()
            stepped = now
        else:
            still.stands(now)
            now += passed
            still.goes_on(now)
    assert still.stood_seconds(now) <= now + 1e-9
