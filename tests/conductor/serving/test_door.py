"""The official OpenAI client against a Conductor process, with real workers and a real daemon behind it."""

import contextlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")
openai = pytest.importorskip("openai", reason="openai is not installed: pip install openai")

import requests
from conductor_process import ConductorProcess
from daemon_process import DaemonProcess
from tiny_model import write_tiny_llama
from tiny_tokenizer import write_tiny_tokenizer
from worker_server import SECRET, WorkerServerProcess

from mooncask.client.socket_path import http_socket_path

OPTIONS = {"load": "always", "block_tokens": "16", "prefill_chunk": "64", "slots": "4", "slot_tokens": "2048"}
READY_SECONDS = 60.0
QUESTION = [{"role": "user", "content": "Tell me what is in this text. " + "All the world is a stage. " * 12}]


@dataclass
class Served:
    conductor: ConductorProcess

    def client(self) -> Any:
        """One for a few calls: as a context it leaves no connection open."""
        return openai.OpenAI(base_url=f"{self.conductor.url}/v1", api_key="none", max_retries=0)

    def ask(self, messages: list[dict[str, str]], **more: Any) -> Any:
        """The answer, or all chunks of its stream."""
        given = {"temperature": 0, "max_tokens": 24, **more}
        with self.client() as client:
            answer = client.chat.completions.create(model="tiny", messages=messages, **given)
            return list(answer) if given.get("stream") else answer

    def post(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> requests.Response:
        return requests.post(self.conductor.url + path, json=body, headers=headers, timeout=60)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("door")
    model = write_tiny_llama(folder / "tiny")
    write_tiny_tokenizer(model)
    settings = f"""
[server]
worker_secret = "{SECRET}"
body_bytes_max = 200000
[policy]
admission = "none"
[limits]
prefix_seconds = 1.0
[models.tiny]
tokenizer = "{model}"
"""
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(DaemonProcess.start(folder))
        conductor = stack.enter_context(ConductorProcess.start(folder, settings))
        pages = f"unix:{http_socket_path(daemon.socket_path)}"
        more = {"conductor": conductor.workers_url, "node": "n1", "node_pages": pages, **OPTIONS}
        for role in ("prefill", "decode"):
            start = WorkerServerProcess.start(folder, f"{role}-1", role, model, daemon.socket_path, **more)
            stack.enter_context(start)
        wait_until_ready(conductor)
        yield Served(conductor)


def wait_until_ready(conductor: ConductorProcess) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while requests.get(conductor.url + "/readyz", timeout=5).status_code != 200:
        assert time.monotonic() < deadline, conductor.log.read_text()
        time.sleep(0.05)


def test_an_answer_whole_and_streamed_is_the_same_text_with_its_usage(served: Served) -> None:
    whole = served.ask(QUESTION)
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = served.ask(QUESTION, stream=True, stream_options={"include_usage": True})
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 300  # the first request computed it
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_second_turn_finds_the_first_one_in_the_store(served: Served) -> None:
    first = served.ask(QUESTION)
    turns = [
        *QUESTION,
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "And?"},
    ]
    second = served.ask(turns)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens // 16 * 16


def test_n_answers_with_a_seed_are_drawn_apart_and_again_the_same(served: Served) -> None:
    def texts() -> list[str]:
        drawn = served.ask(QUESTION, n=3, temperature=1.2, seed=4, max_tokens=12)
        return [choice.message.content for choice in drawn.choices]

    assert texts() == texts()
    assert len(set(texts())) > 1


def test_a_stop_string_ends_the_answer_before_it(served: Served) -> None:
    text = served.ask(QUESTION, max_tokens=24).choices[0].message.content
    stop = text[6:8]
    cut = served.ask(QUESTION, max_tokens=24, stop=[stop])
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_logprobs_come_with_their_tokens(served: Served) -> None:
    told = served.ask(QUESTION, max_tokens=5, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(told) <= 5
    for token in told:
        assert token.logprob == token.top_logprobs[0].logprob <= 0
        assert len(token.top_logprobs) == 2


def test_plain_completions_take_text_and_token_ids(served: Served) -> None:
    tokens = requests.post(
        f"{served.conductor.url}/tokenize", json={"model": "tiny", "prompt": "abc abc"}, timeout=10
    ).json()
    assert tokens["count"] == 7
    with served.client() as client:
        by_text, by_ids = (
            client.completions.create(model="tiny", prompt=prompt, max_tokens=8, temperature=0)
            for prompt in ("abc abc", tokens["tokens"])
        )
    assert by_text.choices[0].text == by_ids.choices[0].text
    assert by_text.usage.prompt_tokens == 7


def test_models_are_those_that_have_workers(served: Served) -> None:
    with served.client() as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").id == "tiny"
        with pytest.raises(openai.NotFoundError, match="no worker serves model gpt-9"):
            client.chat.completions.create(model="gpt-9", messages=QUESTION)


@pytest.mark.parametrize(
    ("change", "status", "code", "text"),
    [
        ({"max_tokens": -1}, 400, "invalid_value", "max_tokens"),
        ({"messages": "hello"}, 400, "invalid_value", "messages"),
        ({"messages": []}, 400, "invalid_value", "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, 400, "invalid_value", "king"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "invalid_value", "image_url"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, 400, "context_length_exceeded", "2048 positions"),
        ({"temperature": "hot"}, 400, "invalid_value", "temperature"),
        ({"logit_bias": {"5": 1}}, 400, "invalid_value", "logit_bias"),
        ({"stop": ["a"] * 9}, 400, "invalid_value", "stop"),
        ({"max_tokens": 100000}, 400, "context_length_exceeded", "2048 positions"),
        ({"response_format": {"type": "json_object"}}, 400, "invalid_value", "response_format"),
        ({"model": "other"}, 404, "model_not_found", "other"),
        ({"messages": [{"role": "user", "content": "x" * 300000}]}, 413, "request_too_large", "200000 bytes"),
    ],
)
def test_bad_requests_are_told_in_openai_s_form_what_to_change(
    served: Served, change: dict[str, Any], status: int, code: str, text: str
) -> None:
    answer = served.post({"model": "tiny", "messages": QUESTION, "max_tokens": 4, **change})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == code
    assert text in error["message"]
    assert answer.headers["x-request-id"]


def test_what_is_no_json_and_no_path_of_ours_is_told_too(served: Served) -> None:
    broken = requests.post(f"{served.conductor.url}/v1/chat/completions", data=b'{"model": ', timeout=10)
    assert broken.status_code == 400
    assert "JSON" in broken.json()["error"]["message"]
    assert served.post({}, "/v1/images").json()["error"]["code"] == "not_found"
    assert requests.get(f"{served.conductor.url}/v1/completions", timeout=10).status_code == 405


def test_an_idempotency_key_does_a_request_once(served: Served) -> None:
    body = {"model": "tiny", "messages": QUESTION, "max_tokens": 8, "temperature": 1.5}
    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda _: served.post(body, **{"Idempotency-Key": "k1"}).json(), range(3)))
    assert answers[0] == answers[1] == answers[2]
    assert served.post(body).json()["id"] != answers[0]["id"]
    other = served.post({**body, "max_tokens": 9}, **{"Idempotency-Key": "k1"})
    assert other.status_code == 400
    assert "another body" in other.json()["error"]["message"]


def test_a_request_id_comes_back(served: Served) -> None:
    answer = served.post({"model": "tiny", "messages": QUESTION, "max_tokens": 2}, **{"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"


def test_many_at_once_get_what_each_gets_alone(served: Served) -> None:
    def ask(number: int) -> str:
        return str(
            served.ask([{"role": "user", "content": f"Question {number}: " + "why? " * 40}]).choices[0].message.content
        )

    alone = [ask(number) for number in range(6)]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(ask, range(6))) == alone


def test_token_ids_are_told_whole_and_streamed_to_who_asks_for_them(served: Served) -> None:
    asked = {"model": "tiny", "messages": QUESTION, "temperature": 0, "max_tokens": 12}
    assert "token_ids" not in served.post(asked).json()["choices"][0]
    [whole] = served.post({**asked, "return_token_ids": True}).json()["choices"]
    assert len(whole["token_ids"]) <= 12
    prompt = served.post({"model": "tiny", "messages": QUESTION}, "/tokenize").json()["tokens"]
    assert whole["prompt_token_ids"] == prompt
    lines = served.post({**asked, "return_token_ids": True, "stream": True}).text.splitlines()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    [told] = [choice for chunk in chunks for choice in chunk["choices"] if "token_ids" in choice]
    assert (told["prompt_token_ids"], told["token_ids"]) == (prompt, whole["token_ids"])
