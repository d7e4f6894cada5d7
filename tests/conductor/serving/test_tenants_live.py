"""Two tenants at one Conductor, with real workers and a real daemon: they never share KV but that of what is public."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import requests
from conductor_process import ConductorProcess
from daemon_process import DaemonProcess
from tiny_model import write_tiny_llama
from tiny_tokenizer import write_tiny_tokenizer
from worker_server import SECRET, WorkerServerProcess

from mooncask.client.socket_path import http_socket_path

OPTIONS = {"load": "always", "block_tokens": "16", "prefill_chunk": "64", "slots": "4", "slot_tokens": "2048"}
BUTLER = "You are a butler of few words, and of much patience. " * 6
READY_SECONDS = 60.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConductorProcess]:
    folder = tmp_path_factory.mktemp("tenants")
    model = write_tiny_llama(folder / "tiny")
    write_tiny_tokenizer(model)
    (folder / "butler.txt").write_text(BUTLER)
    settings = f"""
[server]
worker_secret = "{SECRET}"
[policy]
admission = "none"
[limits]
prefix_seconds = 1.0
[models.tiny]
tokenizer = "{model}"
[keys.ann]
key = "sk-ann"
tenant = "ann"
[keys.bob]
key = "sk-bob"
tenant = "bob"
[keys.meg]
key = "sk-meg"
tenant = "meg"
[tenants.meg]
tokens_per_minute = 400
[tenancy]
salt_secret = "known-to-nobody-else"
[public.butler]
model = "tiny"
file = "{folder / "butler.txt"}"
"""
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(DaemonProcess.start(folder))
        conductor = stack.enter_context(ConductorProcess.start(folder, settings))
        pages = f"unix:{http_socket_path(daemon.socket_path)}"
        more = {"conductor": conductor.workers_url, "node": "n1", "node_pages": pages, **OPTIONS}
        for role in ("prefill", "decode"):
            start = WorkerServerProcess.start(folder, f"{role}-1", role, model, daemon.socket_path, **more)
            stack.enter_context(start)
        deadline = time.monotonic() + READY_SECONDS
        while requests.get(conductor.url + "/readyz", timeout=5).status_code != 200:
            assert time.monotonic() < deadline, conductor.log.read_text()
            time.sleep(0.05)
        yield conductor


def ask(conductor: ConductorProcess, key: str, system: str, question: str, **more: Any) -> requests.Response:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 8, "temperature": 0, **more}
    headers = {"Authorization": f"Bearer {key}"}
    return requests.post(f"{conductor.url}/v1/chat/completions", json=body, headers=headers, timeout=60)


def cached(answer: requests.Response) -> int:
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_tenant_finds_its_own_prompt_again_and_nobody_else_s(served: ConductorProcess) -> None:
    private = "The launch code is one two three four. " * 8
    assert cached(ask(served, "sk-ann", private, "Well?")) == 0
    assert cached(ask(served, "sk-ann", private, "Well?")) > 300
    assert cached(ask(served, "sk-bob", private, "Well?")) == 0
    assert cached(ask(served, "sk-bob", private, "Well?")) > 300


def test_a_public_system_prompt_is_shared_and_the_question_behind_it_is_not(served: ConductorProcess) -> None:
    question = "Tell me where the silver spoons of the house are kept at night, please. " * 2
    first = ask(served, "sk-ann", BUTLER, question)
    again = cached(ask(served, "sk-ann", BUTLER, question))
    other = ask(served, "sk-bob", BUTLER, question)
    public = len(BUTLER) // 16 * 16
    assert public <= cached(other) <= public + 32 < again
    assert other.json()["choices"][0]["message"]["content"] == first.json()["choices"][0]["message"]["content"]
    assert cached(ask(served, "sk-bob", BUTLER, question)) == again


def test_a_quota_is_told_with_the_time_to_wait(served: ConductorProcess) -> None:
    assert ask(served, "sk-meg", "Hush", "x" * 300).status_code == 200
    refused = ask(served, "sk-meg", "Hush", "x" * 300)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "insufficient_quota"
    assert 1 <= int(refused.headers["Retry-After"]) <= 62
    larger = ask(served, "sk-meg", "Hush", "x" * 500)
    assert larger.status_code == 429
    assert "Retry-After" not in larger.headers


def test_who_has_no_key_is_told_how_to_send_one(served: ConductorProcess) -> None:
    refused = ask(served, "sk-nobody", "Hush", "Well?")
    assert refused.status_code == 401
    assert refused.json()["error"]["type"] == "authentication_error"
    assert requests.get(f"{served.url}/v1/models", timeout=10).status_code == 401
    for key in ("sk-ann", "sk-bob", "sk-nobody"):
        assert key not in served.log.read_text()
