"""Prefill and decode as separate processes over a real daemon: the tokens are those of a run without the store, whatever
the store does meanwhile; and what was loaded is what the results say."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import numpy as np
import psutil
from daemon_process import DaemonProcess
from msgspec.structs import replace as with_fields
from tiny_model import TINY, prompt_of, write_tiny_llama

from mooncask.client.hashing import chain
from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.engine_adapter.transformers.kv_layout import KvBuffer, cache_over
from mooncask.engine_adapter.transformers.messages import DecodeResult, Loaded, Ready, Refusal, Request
from mooncask.engine_adapter.transformers.model import load_model
from mooncask.engine_adapter.transformers.worker_process import WorkerProcess, WorkerSettings
from mooncask.errors import BadRequest, WorkerUnavailable

BLOCK = 16
ANSWER = 20
CHUNK = 24
"""No multiple of a block: blocks begin in one chunk and end in the next."""
OPTIONS = {"load": "always", "block-tokens": str(BLOCK), "prefill-chunk": str(CHUNK), "deadline-seconds": "1"}


@dataclass
class Pipeline:
    folder: Path
    model: Path
    daemon: DaemonProcess
    prefill: WorkerProcess
    decode: WorkerProcess
    ready: Ready

    def reference(self, request: Request) -> list[int]:
        """The tokens of the same worker without the store."""
        return self.decode.decode(with_fields(request, use_store=False)).tokens

    def both(self, request: Request) -> DecodeResult:
        self.prefill.prefill(request)
        return self.decode.decode(request)

    @contextmanager
    def client(self) -> Iterator[tuple[LocalClient, NamespaceHandle]]:
        with LocalClient.connect(self.daemon.socket_path, populate=False) as client:
            yield client, client.open_namespace(family=self.ready.family)

    def keys(self, request: Request) -> list[bytes]:
        with self.client() as (_, namespace):
            return chain(namespace.root(request.cache_salt), request.tokens, BLOCK)

    @contextmanager
    def worker(self, role: str, **options: str) -> Iterator[WorkerProcess]:
        """One more worker, with some options of its own."""
        settings = WorkerSettings(role, self.model, self.daemon.socket_path, {**OPTIONS, **options})
        with (self.folder / "more.log").open("wb") as log, WorkerProcess(settings, log) as worker:
            yield worker


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    folder = tmp_path_factory.mktemp("pipeline")
    model = write_tiny_llama(folder / "tiny")
    with ExitStack() as stack:
        daemon = stack.enter_context(DaemonProcess.start(folder))
        log = stack.enter_context((folder / "workers.log").open("wb"))
        workers = [
            stack.enter_context(WorkerProcess(WorkerSettings(role, model, daemon.socket_path, OPTIONS), log))
            for role in ("prefill", "decode")
        ]
        ready = [worker.ready() for worker in workers]
        yield Pipeline(folder, model, daemon, workers[0], workers[1], ready[0])


@pytest.fixture(autouse=True)
def leaves_nothing_behind(pipeline: Pipeline) -> Iterator[None]:
    """In place of the general check, which would take a daemon that was started again for a leak."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    ours = {pipeline.daemon.pid, pipeline.prefill.pid, pipeline.decode.pid}
    others = [child for child in psutil.Process().children(recursive=True) if child.pid not in ours | before]
    assert psutil.wait_procs(others, 5.0)[1] == []
    assert {thread.name for thread in threading.enumerate()} == {"MainThread"}


def request_of(tokens: int, seed: int, **fields: object) -> Request:
    return with_fields(Request(str(seed), prompt_of(tokens, seed), max_tokens=ANSWER), **fields)


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen"


# --- hand-over -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 32, 33, 700])
def test_decode_loads_what_prefill_stored_and_answers_the_same_tokens(pipeline: Pipeline, tokens: int) -> None:
    request = request_of(tokens, seed=tokens)
    stored = pipeline.prefill.prefill(request)
    answer = pipeline.decode.decode(request)
    assert (stored.computed, stored.stored_blocks) == (tokens // BLOCK * BLOCK, tokens // BLOCK)
    assert answer.loaded == Loaded(dram=(tokens - 1) // BLOCK * BLOCK)
    assert answer.computed == tokens - answer.loaded.total
    assert answer.tokens == pipeline.reference(request)
    assert len(answer.tokens) == len(answer.top2_gap) == ANSWER
    assert stored.faults == answer.faults == {}


def test_prefill_computes_only_what_follows_the_longest_known_prefix(pipeline: Pipeline) -> None:
    first = request_of(300, seed=1000)
    second = with_fields(first, id="second", tokens=first.tokens[:170] + prompt_of(200, 1001))
    pipeline.prefill.prefill(first)
    result = pipeline.prefill.prefill(second)
    assert result.loaded == Loaded(dram=160)
    assert result.computed == 368 - 160
    assert pipeline.decode.decode(second).tokens == pipeline.reference(second)


def test_prefill_of_a_prompt_that_is_all_there_does_nothing(pipeline: Pipeline) -> None:
    request = request_of(100, seed=1002)
    pipeline.prefill.prefill(request)
    again = pipeline.prefill.prefill(request)
    assert (again.computed, again.loaded.total, again.stored_blocks) == (0, 0, 0)
    assert again.decision.reason == "everything is cached"


def test_requests_with_unlike_salts_share_nothing(pipeline: Pipeline) -> None:
    request = request_of(100, seed=1003)
    pipeline.both(request)
    salted = pipeline.decode.decode(with_fields(request, cache_salt="tenant's own"))
    assert salted.loaded.total == 0
    assert salted.tokens == pipeline.reference(request)


def test_sampling_by_temperature_needs_no_state_from_prefill(pipeline: Pipeline) -> None:
    request = request_of(200, seed=1004)
    drawn = [with_fields(request, temperature=1.5, seed=seed) for seed in (7, 7, 8)]
    answers = [pipeline.both(one).tokens for one in drawn]
    assert answers[0] == answers[1] == pipeline.reference(drawn[0])
    assert answers[2] != answers[0]


def test_an_answer_ends_with_a_stop_token(pipeline: Pipeline) -> None:
    request = request_of(50, seed=1005)
    third = pipeline.reference(request)[2]
    stopped = pipeline.decode.decode(with_fields(request, stop_tokens=[third]))
    assert stopped.tokens[-1] == third
    assert len(stopped.tokens) <= 3


def test_the_stored_bytes_are_the_models_kv_in_the_published_layout(pipeline: Pipeline) -> None:
    request = request_of(40, seed=1006)
    pipeline.prefill.prefill(request)
    model = load_model(pipeline.model, "float32", BLOCK)
    buffer = KvBuffer(model.layout, 64)
    model.forward(request.tokens, cache_over(buffer, 0, lambda layer: None))
    with pipeline.client() as (client, namespace), client.acquire(namespace, pipeline.keys(request)) as blocks:
        block = blocks[1]
        assert block is not None
        stored = block.numpy(np.float32, model.layout.block_shape).copy()
    np.testing.assert_allclose(stored, buffer.storage[:, :, :, 16:32].numpy(), rtol=1e-4, atol=1e-5)


def test_those_who_wait_see_a_chunk_grow_layer_by_layer(pipeline: Pipeline) -> None:
    request = request_of(64, seed=1007)
    keys, seen, found = pipeline.keys(request), [], []
    with pipeline.client() as (client, namespace):
        client.expect(namespace, keys, ttl_seconds=30)

        def wait() -> None:
            told = lambda index, layer, layers: seen.append((layer, layers)) if index == 0 else None
            with client.acquire(namespace, keys, deadline_seconds=30, wait=True, progress=told) as blocks:
                found.append(blocks.prefix)

        waiter = threading.Thread(target=wait)
        waiter.start()
        pipeline.prefill.prefill(request)
        waiter.join()
    assert found == [4]
    assert seen == sorted(seen)
    assert {layers for _, layers in seen} == {TINY["num_hidden_layers"]}


# --- write-back ------------------------------------------------------------------------------------------------------


def test_written_back_answers_make_the_next_turn_hit(pipeline: Pipeline) -> None:
    first = request_of(90, seed=1010)
    answer = pipeline.both(first)
    assert answer.stored_blocks == (90 + ANSWER - 1) // BLOCK - 90 // BLOCK
    turn = with_fields(first, id="turn 2", tokens=first.tokens + answer.tokens + prompt_of(30, 1011))
    second = pipeline.decode.decode(turn)
    assert second.loaded.total == (90 + ANSWER - 1) // BLOCK * BLOCK
    assert second.tokens == pipeline.reference(turn)


def test_writing_back_can_be_switched_off(pipeline: Pipeline) -> None:
    first = request_of(90, seed=1012, write_back=False)
    answer = pipeline.both(first)
    turn = with_fields(first, tokens=first.tokens + answer.tokens)
    assert answer.stored_blocks == 0
    assert pipeline.decode.decode(turn).loaded.total == 90 // BLOCK * BLOCK


# --- what is missing is computed -------------------------------------------------------------------------------------


def test_a_chain_with_a_hole_is_loaded_up_to_the_hole(pipeline: Pipeline) -> None:
    request = request_of(200, seed=1020)
    pipeline.prefill.prefill(request)
    with pipeline.client() as (client, namespace):
        assert client.evict(namespace, pipeline.keys(request)[5:7]) == 2
    answer = pipeline.decode.decode(request)
    assert answer.loaded.total == 5 * BLOCK
    assert answer.tokens == pipeline.reference(request)
    assert pipeline.decode.decode(request).loaded.total == 192, "what was computed was written back into the hole"


def test_a_block_of_another_length_under_our_key_is_not_loaded(pipeline: Pipeline) -> None:
    request = request_of(100, seed=1021)
    with pipeline.client() as (client, namespace):
        client.put(namespace, pipeline.keys(request)[:1], [b"not ours"])
    answer = pipeline.decode.decode(request)
    assert answer.loaded.total == 0
    assert answer.tokens == pipeline.reference(request)


def test_after_a_restart_blocks_come_from_nvme(pipeline: Pipeline) -> None:
    request = request_of(100, seed=1022)
    pipeline.prefill.prefill(request)
    pipeline.daemon.stop()
    pipeline.daemon.run()
    answer = pipeline.decode.decode(request)
    assert answer.loaded == Loaded(nvme=96)
    assert answer.tokens == pipeline.reference(request)


# --- the daemon goes away ---------------------------------------------------------------------------------------------


@pytest.fixture
def revived(pipeline: Pipeline) -> Iterator[Pipeline]:
    """Whatever a test does to the daemon, the next one finds it running."""
    yield pipeline
    if pipeline.daemon.process is None:
        pipeline.daemon.run()
    pipeline.daemon.thaw()


def test_without_a_daemon_the_answer_is_computed_and_says_so(revived: Pipeline) -> None:
    request = request_of(100, seed=1030)
    want = revived.reference(request)
    revived.prefill.prefill(request)
    revived.daemon.kill()
    answer = revived.decode.decode(request)
    assert (answer.tokens, answer.loaded.total) == (want, 0)
    assert answer.faults["DaemonUnavailable"] >= 1
    stored = revived.prefill.prefill(request)
    assert (stored.stored_blocks, stored.computed) == (0, 0), "nobody could read what it would compute"
    assert stored.faults["DaemonUnavailable"] >= 1


def test_a_worker_uses_the_store_again_after_the_daemon_came_back(revived: Pipeline) -> None:
    request = request_of(100, seed=1031)
    revived.daemon.kill()
    revived.decode.decode(request)
    revived.daemon.run()
    assert revived.both(request).loaded.total == 96


def test_a_daemon_killed_while_decode_asks_it_costs_only_time(revived: Pipeline) -> None:
    request = request_of(300, seed=1032)
    want = revived.reference(request)
    revived.prefill.prefill(request)
    revived.daemon.freeze()  # so that the worker is in the middle of a call for certain
    revived.decode.send(request)
    revived.daemon.kill()
    answer = revived.decode.receive(30)
    assert isinstance(answer, DecodeResult)
    assert answer.tokens == want
    assert answer.faults


def test_a_daemon_that_hangs_is_given_up_at_the_deadline(revived: Pipeline) -> None:
    request = request_of(300, seed=1033)
    want = revived.both(request).tokens
    revived.daemon.freeze()
    answer = revived.decode.decode(request, seconds=30)
    assert (answer.tokens, answer.loaded.total) == (want, 0)
    assert answer.faults == {"DeadlineExceeded": 1}, "asked once, not again and again"
    revived.daemon.thaw()
    assert revived.decode.decode(request).tokens == want


def test_a_daemon_killed_between_two_prefill_chunks_costs_only_time(revived: Pipeline) -> None:
    request = request_of(1900, seed=1034)
    want = revived.reference(request)
    keys = revived.keys(request)
    with revived.client() as (client, namespace):
        revived.prefill.send(request)
        eventually(lambda: len(client.match(namespace, keys)) > 0)
        revived.daemon.kill()
    stored = revived.prefill.receive(30)
    assert not isinstance(stored, Refusal)
    assert stored.faults
    assert stored.computed < len(keys) * BLOCK, "it stops: nobody could read the rest"
    revived.daemon.run()
    assert revived.decode.decode(request).tokens == want


def test_a_worker_starts_without_a_daemon_and_finds_it_later(revived: Pipeline) -> None:
    request = request_of(100, seed=1035)
    want = revived.reference(request)
    revived.daemon.kill()
    with revived.worker("decode") as worker:
        assert worker.ready().namespace == ""
        assert worker.decode(request).tokens == want
        revived.daemon.run()
        revived.prefill.prefill(request)
        assert worker.decode(request).loaded.total == 96


# --- refused ----------------------------------------------------------------------------------------------------------


def test_prompts_that_the_model_cannot_take_are_refused_and_the_worker_goes_on(pipeline: Pipeline) -> None:
    with pytest.raises(BadRequest, match="token 320; the vocabulary of tiny has 320"):
        pipeline.decode.decode(Request("a", [320]))
    with pytest.raises(BadRequest, match="2049 tokens with the answer; tiny has 2048 positions"):
        pipeline.decode.decode(Request("a", prompt_of(2048), max_tokens=1))
    pipeline.decode.send_line(b"{")
    refusal = pipeline.decode.receive(10)
    assert isinstance(refusal, Refusal)
    assert refusal.error == "BadRequest"
    assert pipeline.decode.decode(request_of(10, seed=1050)).tokens


def test_a_worker_of_another_family_is_refused_by_the_field_that_differs(pipeline: Pipeline) -> None:
    options = {"namespace": pipeline.ready.namespace, "block-tokens": "32"}
    with pipeline.worker("decode", **options) as worker, pytest.raises(WorkerUnavailable, match="exit code 65"):
        worker.ready()
    assert "block_tokens = 16; this worker's is 32" in (pipeline.folder / "more.log").read_text()


def test_a_model_that_is_not_understood_ends_the_worker_with_its_name(pipeline: Pipeline) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    other = replace(pipeline, model=write_tiny_llama(pipeline.folder / "stretched", rope_parameters=rope))
    with other.worker("decode") as worker, pytest.raises(WorkerUnavailable, match="exit code 65"):
        worker.ready()
    assert "model stretched: rope_type dynamic" in (pipeline.folder / "more.log").read_text()
