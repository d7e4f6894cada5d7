"""Processes that are killed, frozen and cut off in the middle: every answer is what an engine alone would say, or ends as broken.

Real workers of the tiny model, a real daemon and a real Conductor; what no real worker does is in test_worker_faults.py.
"""

import contextlib
import json
import logging
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import requests
from served_pool import Pool, Reference, served_pool, until

from mooncask.client.worker_api import GONE_SECONDS, Role

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
log = logging.getLogger(__name__)

CANCEL_SECONDS = 2.0


def test_no_answer_is_wrong_whatever_is_killed_frozen_or_stopped(tmp_path: Path) -> None:
    """One after the other in one pool, since starting a pool takes longer than breaking it."""
    workers = ["prefill-1", "prefill-2", "decode-1", "decode-2"]
    with served_pool(tmp_path, workers) as pool:
        reference = Reference(pool.model_folder)
        for scenario in SCENARIOS:
            pool.wait_until_ready(2, 2)
            started = time.monotonic()
            scenario(pool, reference)
            pool.wait_until_ready(2, 2)
            until(pool.idle, f"{scenario.__name__}: workers go on with what nobody waits for")
            log.info("%s: %.1f s", scenario.__name__, time.monotonic() - started)


def a_frozen_decode_worker_costs_no_token_and_comes_back(pool: Pool, reference: Reference) -> None:
    prompt = pool.prompt(150, seed=1)
    with contextlib.closing(pool.stream(prompt, 600)) as stream:
        stream.read(20)
        [frozen] = pool.serving("decode")
        frozen.freeze()
        try:
            assert stream.read().tokens() == reference.answer(prompt, 600)
        finally:
            frozen.thaw()


def a_frozen_prefill_worker_is_replaced_by_the_other(pool: Pool, reference: Reference) -> None:
    prompt = pool.prompt(1500, seed=2)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(pool.tokens, prompt, 6)
        until(lambda: pool.serving("prefill"), "no prefill")
        [frozen] = pool.serving("prefill")
        frozen.freeze()
        try:
            assert asked.result(60) == reference.answer(prompt, 6)
            # The other direction: it is frozen before it is asked, and still taken to be there.
            again = pool.prompt(300, seed=3)
            assert pool.tokens(again, 6) == reference.answer(again, 6)
        finally:
            frozen.thaw()


def a_daemon_that_dies_while_decode_loads_costs_no_token(pool: Pool, reference: Reference) -> None:
    prompts = [pool.prompt(700, seed=10 + i) for i in range(3)]
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(pool.tokens, prompt, 40) for prompt in prompts]
        until(lambda: pool.serving("prefill"), "no prefill")
        pool.daemon.kill()
        assert [one.result(60) for one in asked] == [reference.answer(prompt, 40) for prompt in prompts]
    pool.daemon.run()
    # Workers find it again by themselves: what one request stores the next one finds.
    again = pool.prompt(400, seed=20)

    def cached() -> bool:
        return bool(pool.ask(again, 4).json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    until(cached, "nothing is found in the new daemon")


def a_client_that_goes_away_ends_its_request_at_both_workers(pool: Pool, reference: Reference) -> None:
    for length, max_tokens, what in [(1900, 8, "prefill"), (150, 1800, "decode")]:
        with socket.create_connection(("127.0.0.1", pool.ports[0])) as connection:
            connection.sendall(post(pool.body(pool.prompt(length, seed=length), max_tokens, stream=True)))
            until(lambda what=what: pool.serving(what), f"no {what}")  # type: ignore[misc]
        assert until(pool.idle, "workers go on for nobody") < CANCEL_SECONDS


def a_conductor_that_is_killed_breaks_its_answers_and_is_found_again(pool: Pool, reference: Reference) -> None:
    prompt = pool.prompt(100, seed=40)
    streams = [pool.stream(prompt, 1500) for _ in range(2)]
    with ThreadPoolExecutor(1) as thread:
        whole = thread.submit(requests.post, f"{pool.url}/v1/completions", json=pool.body(prompt, 1500), timeout=60)
        for stream in streams:
            stream.read(5)
        pool.conductor.kill()
        with pytest.raises(requests.ConnectionError):
            whole.result(10)
    for stream in streams:
        stream.read()
        assert isinstance(stream.error, requests.RequestException)
        assert not stream.whole
        stream.close()
    assert until(pool.idle, "workers go on for a dead Conductor") < CANCEL_SECONDS
    pool.start_conductor()
    pool.wait_until_ready(2, 2)
    assert pool.tokens(prompt, 30) == reference.answer(prompt, 30)


def a_conductor_that_is_frozen_holds_no_slot_and_goes_on_where_it_was(pool: Pool, reference: Reference) -> None:
    """It keeps its connections, as one does that the network has cut off: nobody tells the workers."""
    prompt = pool.prompt(100, seed=45)
    with contextlib.closing(pool.stream(prompt, 1500)) as stream:
        stream.read(5)
        pool.conductor.freeze()
        try:
            assert until(pool.idle, "workers go on for a Conductor that says nothing", 15) < GONE_SECONDS + 1.5
        finally:
            pool.conductor.thaw()
        assert stream.read().tokens() == reference.answer(prompt, 1500)
    pool.wait_until_ready(2, 2)


def two_conductors_see_each_other_s_answers_and_share_the_slots(pool: Pool, reference: Reference) -> None:
    prompt = pool.prompt(64, seed=50)
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(pool.second_conductor())
        pool.wait_until_ready(2, 2, other.url)
        streams = [stack.enter_context(contextlib.closing(pool.stream(prompt, 1900))) for _ in range(8)]
        # The first one's answers have all 8 slots: what the second one is asked waits until a place is free.
        with ThreadPoolExecutor(1) as thread:
            ninth = thread.submit(requests.post, f"{other.url}/v1/completions", json=pool.body(prompt, 5), timeout=60)
            until(lambda: pool.page("overview", other.url)["waiting"] == 1, "it does not wait")
            streams[0].close()
            answer = ninth.result(30)
        assert answer.json()["choices"][0]["token_ids"] == reference.answer(prompt, 5)
        for stream in streams:
            stream.close()


def a_change_of_role_under_load_costs_no_token(pool: Pool, reference: Reference) -> None:
    prompts = [pool.prompt(200, seed=60 + i) for i in range(6)]
    with ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(pool.tokens, prompt, 150) for prompt in prompts]
        until(lambda: pool.serving("decode"), "no answer")
        pool.set_role("decode-2", Role.PREFILL)
        pool.wait_until_ready(3, 1)
        late = [threads.submit(pool.tokens, prompt, 20) for prompt in prompts[:2]]
        assert [one.result(60) for one in asked] == [reference.answer(prompt, 150) for prompt in prompts]
        assert [one.result(60) for one in late] == [reference.answer(prompt, 20) for prompt in prompts[:2]]
    pool.set_role("decode-2", Role.DECODE)
    pool.wait_until_ready(2, 2)


def a_worker_that_is_told_to_stop_ends_its_answers_and_takes_no_more(pool: Pool, reference: Reference) -> None:
    prompt = pool.prompt(100, seed=70)
    with contextlib.closing(pool.stream(prompt, 250)) as stream:
        stream.read(5)
        [stopping] = pool.serving("decode")
        stopping.process.send_signal(signal.SIGTERM)
        assert pool.tokens(prompt, 5) == reference.answer(prompt, 5)
        assert stream.read().tokens() == reference.answer(prompt, 250)
    assert stopping.process.wait(20) == 0
    name = next(name for name, worker in pool.workers.items() if worker is stopping)
    pool.start_worker(name)


def a_conductor_that_is_told_to_stop_ends_its_answers_and_takes_no_more(pool: Pool, reference: Reference) -> None:
    prompt = pool.prompt(100, seed=80)
    with contextlib.closing(pool.stream(prompt, 300)) as stream:
        stream.read(5)
        pool.conductor.process.send_signal(signal.SIGTERM)
        until(lambda: requests.get(f"{pool.url}/readyz", timeout=5).status_code == 503, "it is still ready")
        refused = pool.ask(prompt, 5)
        assert refused.status_code == 503
        assert refused.json()["error"]["message"].startswith("this Conductor is being stopped")
        assert stream.read().tokens() == reference.answer(prompt, 300)
    assert pool.conductor.process.wait(20) == 0
    pool.start_conductor()


def post(body: dict[str, object]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


SCENARIOS: list[Callable[[Pool, Reference], None]] = [
    a_frozen_decode_worker_costs_no_token_and_comes_back,
    a_frozen_prefill_worker_is_replaced_by_the_other,
    a_daemon_that_dies_while_decode_loads_costs_no_token,
    a_client_that_goes_away_ends_its_request_at_both_workers,
    a_conductor_that_is_killed_breaks_its_answers_and_is_found_again,
    a_conductor_that_is_frozen_holds_no_slot_and_goes_on_where_it_was,
    two_conductors_see_each_other_s_answers_and_share_the_slots,
    a_change_of_role_under_load_costs_no_token,
    a_worker_that_is_told_to_stop_ends_its_answers_and_takes_no_more,
    a_conductor_that_is_told_to_stop_ends_its_answers_and_takes_no_more,
]
