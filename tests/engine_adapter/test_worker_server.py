"""Workers as servers over a real daemon: answers in a batch are those of an engine without store, batch or server."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import torch
from daemon_process import DaemonProcess
from tiny_model import TINY, prompt_of, write_tiny_llama
from worker_server import WorkerServerProcess

from mooncask.client.worker_api import (
    Admitted,
    DecodeCall,
    DecodeDone,
    Failure,
    FailureKind,
    PrefillCall,
    PrefillDone,
    Role,
    Sampling,
    Started,
    StreamLine,
    Tokens,
)
from mooncask.engine_adapter.transformers.model import Model, load_model
from mooncask.engine_adapter.transformers.sampling import choose

BLOCK = 16
SLOTS = 4
OPTIONS = {
    "load": "always",
    "block_tokens": str(BLOCK),
    "prefill_chunk": "24",
    "slots": str(SLOTS),
    "slot_tokens": "1024",
}


@dataclass
class Pool:
    folder: Path
    model: Model
    prefill: WorkerServerProcess
    decode: WorkerServerProcess

    def reference(self, call: DecodeCall) -> list[int]:
        """Greedy or drawn, by the library's own cache, one token a pass."""
        tokens, answer = list(call.tokens), []
        for position in range(call.max_tokens):
            with torch.inference_mode():
                logits = self.model.module(input_ids=torch.tensor([tokens])).logits[0, -1].float().numpy()
            s = call.sampling
            answer.append(choose(logits, s.temperature, s.seed, call.first_position + position, s.top_p).token)
            tokens.append(answer[-1])
            if answer[-1] in s.stop_tokens:
                break
        return answer


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    folder = tmp_path_factory.mktemp("servers")
    model = write_tiny_llama(folder / "tiny")
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(DaemonProcess.start(folder))
        start = WorkerServerProcess.start
        prefill = stack.enter_context(start(folder, "p1", "prefill", model, daemon.socket_path, **OPTIONS))
        decode = stack.enter_context(start(folder, "d1", "decode", model, daemon.socket_path, **OPTIONS))
        yield Pool(folder, load_model(model, "float32", BLOCK), prefill, decode)


def tokens_of(lines: list[StreamLine]) -> list[int]:
    return [token for line in lines if isinstance(line, Tokens) for token in line.tokens]


def until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_an_answer_is_admitted_streamed_and_ends_with_its_figures(pool: Pool) -> None:
    call = DecodeCall(id="one", tokens=prompt_of(70, seed=1), max_tokens=12)
    lines = pool.decode.lines(call)
    assert isinstance(lines[0], Admitted)
    assert tokens_of(lines) == pool.reference(call)
    done = lines[-1]
    assert isinstance(done, DecodeDone)
    assert (done.reason, done.output_tokens, done.cached_tokens, done.computed_tokens) == ("length", 12, 0, 70)
    assert (done.stored_blocks, done.faults) == (5, {})


def test_what_a_prefill_stored_is_loaded_and_not_computed_again(pool: Pool) -> None:
    prompt = prompt_of(100, seed=2)
    lines = pool.prefill.lines(PrefillCall(id="p", tokens=prompt))
    assert [type(line) for line in lines] == [Admitted, Started, PrefillDone]
    done = lines[-1]
    assert isinstance(done, PrefillDone)
    assert (done.cached_tokens, done.computed_tokens, done.stored_blocks) == (0, 96, 6)
    answer = pool.decode.lines(call := DecodeCall(id="d", tokens=prompt, max_tokens=5))
    assert tokens_of(answer) == pool.reference(call)
    assert isinstance(answer[-1], DecodeDone)
    assert (answer[-1].cached_tokens, answer[-1].computed_tokens) == (96, 4)


def test_eight_answers_of_unlike_lengths_at_four_slots_are_those_that_each_gets_alone(pool: Pool) -> None:
    calls = [
        DecodeCall(id=f"batch-{i}", tokens=prompt_of(10 + 37 * i, seed=10 + i), max_tokens=6 + 5 * (i % 4))
        for i in range(8)
    ]

    def run(call: DecodeCall) -> list[StreamLine]:
        while True:  # what finds no slot is refused at once: the queue is the caller's
            lines = pool.decode.lines(call)
            if not (isinstance(lines[0], Failure) and lines[0].kind is FailureKind.BUSY):
                return lines
            time.sleep(0.01)

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(run, calls))
    assert [tokens_of(lines) for lines in answers] == [pool.reference(call) for call in calls]
    steps = pool.decode.state().report.steps
    assert max(step.batch for step in steps) > 1, "they never ran together"


def test_drawn_tokens_depend_on_seed_and_position_and_not_on_who_else_is_in_the_batch(pool: Pool) -> None:
    sampling = Sampling(temperature=0.9, top_p=0.8, seed=7)
    calls = [
        DecodeCall(id=f"drawn-{i}", tokens=prompt_of(40, seed=i), max_tokens=10, sampling=sampling) for i in range(3)
    ]
    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(pool.decode.lines, calls))
    assert [tokens_of(lines) for lines in answers] == [pool.reference(call) for call in calls]


def test_an_answer_that_is_continued_elsewhere_goes_on_as_if_nothing_had_happened(pool: Pool) -> None:
    sampling = Sampling(temperature=1.0, seed=3)
    whole = DecodeCall(id="whole", tokens=prompt_of(50, seed=4), max_tokens=12, sampling=sampling)
    want = tokens_of(pool.decode.lines(whole))
    rest = DecodeCall(id="rest", tokens=whole.tokens + want[:5], max_tokens=7, sampling=sampling, first_position=5)
    assert tokens_of(pool.decode.lines(rest)) == want[5:]


def test_a_stop_token_ends_the_answer_and_is_its_last(pool: Pool) -> None:
    prompt = prompt_of(33, seed=5)
    want = pool.reference(DecodeCall(id="x", tokens=prompt, max_tokens=8))
    stop = Sampling(stop_tokens=[want[3]])
    lines = pool.decode.lines(DecodeCall(id="stops", tokens=prompt, max_tokens=8, sampling=stop))
    assert tokens_of(lines) == want[: want.index(want[3]) + 1]
    assert isinstance(lines[-1], DecodeDone)
    assert lines[-1].reason == "stop"


def test_logprobs_are_those_of_the_chosen_token_and_the_likeliest(pool: Pool) -> None:
    call = DecodeCall(id="logs", tokens=prompt_of(20, seed=6), max_tokens=3, sampling=Sampling(logprobs=2))
    lines = [line for line in pool.decode.lines(call) if isinstance(line, Tokens)]
    for line in lines:
        assert line.logprobs is not None
        (told,) = line.logprobs
        assert told.top[0].token == line.tokens[0]  # greedy
        assert told.top[0].logprob == told.chosen >= told.top[1].logprob
        assert told.chosen <= 0


def test_salts_share_nothing_but_a_public_beginning(pool: Pool) -> None:
    prompt = prompt_of(80, seed=7)
    pool.prefill.lines(PrefillCall(id="a", tokens=prompt, cache_salt="tenant a", public_tokens=2 * BLOCK))
    for salt, cached in (("tenant a", 64), ("tenant b", 32)):
        call = DecodeCall(
            id=salt, tokens=prompt, max_tokens=2, cache_salt=salt, public_tokens=2 * BLOCK, write_back=False
        )
        lines = pool.decode.lines(call)
        assert isinstance(lines[-1], DecodeDone)
        assert lines[-1].cached_tokens == cached, salt


def test_decode_that_begins_with_the_prefill_waits_for_its_blocks(pool: Pool) -> None:
    prompt = prompt_of(900, seed=8)
    with pool.prefill.open(PrefillCall(id="long", tokens=prompt)) as response:
        lines = response.iter_lines()
        next(lines), next(lines)  # admitted, started: from now on its blocks are expected
        call = DecodeCall(id="early", tokens=prompt, max_tokens=4, wait_seconds=10, inline_prefill_tokens=64)
        answer = pool.decode.lines(call)
        list(lines)
    assert tokens_of(answer) == pool.reference(call)
    assert isinstance(answer[-1], DecodeDone)
    assert answer[-1].cached_tokens == 896


def test_more_missing_than_may_be_computed_inline_is_kv_lost(pool: Pool) -> None:
    lines = pool.decode.lines(
        DecodeCall(id="lost", tokens=prompt_of(200, seed=9), max_tokens=4, inline_prefill_tokens=32)
    )
    assert isinstance(lines[-1], Failure)
    assert lines[-1].kind is FailureKind.KV_LOST
    assert pool.decode.state().report.free_slots == SLOTS


def test_a_closed_connection_ends_its_answer_and_frees_the_slot(pool: Pool) -> None:
    response = pool.decode.open(DecodeCall(id="gone", tokens=prompt_of(30, seed=11), max_tokens=900))
    lines = response.iter_lines()
    next(lines), next(lines)
    assert "gone" in pool.decode.state().report.requests
    response.close()
    until(lambda: not pool.decode.state().report.requests, "the answer went on")
    assert pool.decode.state().report.free_slots == SLOTS


def test_a_full_batch_refuses_as_busy_before_it_admits(pool: Pool) -> None:
    responses = [
        pool.decode.open(DecodeCall(id=f"full-{i}", tokens=prompt_of(20, seed=i), max_tokens=900)) for i in range(SLOTS)
    ]
    try:
        until(lambda: pool.decode.state().report.free_slots == 0, "slots stayed free")
        with pool.decode.open(DecodeCall(id="too-many", tokens=[1, 2], max_tokens=1)) as refused:
            assert refused.status_code == 503
            assert refused.json()["kind"] == "busy"
    finally:
        for response in responses:
            response.close()
    until(lambda: pool.decode.state().report.free_slots == SLOTS, "slots were not freed")


def test_what_makes_no_sense_is_refused_with_what_to_change(pool: Pool) -> None:
    for call, text in (
        (DecodeCall(id="long", tokens=prompt_of(1000), max_tokens=100), "1024 positions"),
        (DecodeCall(id="foreign", tokens=[TINY["vocab_size"]], max_tokens=1), "vocabulary"),
    ):
        (failure,) = pool.decode.lines(call)
        assert isinstance(failure, Failure)
        assert failure.kind is FailureKind.REFUSED
        assert text in failure.message
    with pool.decode.open(DecodeCall(id="x", tokens=[1], max_tokens=1), secret="another") as refused:
        assert refused.status_code == 401


def test_higher_priority_goes_first_in_the_queue(pool: Pool) -> None:
    order: list[str] = []

    def run(name: str, priority: int, tokens: int) -> None:
        pool.prefill.lines(PrefillCall(id=name, tokens=prompt_of(tokens, seed=hash(name) % 1000), priority=priority))
        order.append(name)

    threads = [threading.Thread(target=run, args=("first", 128, 1000))]
    threads[0].start()
    until(lambda: pool.prefill.state().report.running == 1, "the first did not start")
    for name, priority in (("low", 10), ("high", 200)):
        threads.append(threading.Thread(target=run, args=(name, priority, 30)))
        threads[-1].start()
        until(lambda name=name: name in pool.prefill.state().report.requests, "it was not queued")  # type: ignore[misc]
    for thread in threads:
        thread.join()
    assert order == ["first", "high", "low"]


def test_a_worker_changes_its_role_and_finishes_what_it_had_begun(pool: Pool) -> None:
    import requests
    from worker_server import SECRET

    def set_role(role: Role) -> None:
        headers = {"Authorization": f"Bearer {SECRET}"}
        assert requests.post(f"{pool.prefill.address}/v1/role", json={"role": role}, headers=headers, timeout=30).ok

    call = DecodeCall(id="elsewhere", tokens=prompt_of(20, seed=13), max_tokens=3)
    with pool.prefill.open(call) as refused:
        assert refused.status_code == 503
    set_role(Role.DECODE)
    try:
        assert tokens_of(pool.prefill.lines(call)) == pool.reference(call)
        assert pool.prefill.state().report.role is Role.DECODE
    finally:
        set_role(Role.PREFILL)
