"""A Conductor before two of vLLM's API servers with the real SmolLM2: what the official client gets is what vLLM alone says.

One server prefills, and is the second one to decode too: three would not fit into the memory of a small machine.
"""

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

openai = pytest.importorskip("openai", reason="openai is not installed: pip install openai")

from conductor_process import ConductorProcess
from daemon_process import DaemonProcess
from prompts import prompt
from vllm_process import BLOCK_TOKENS, VllmServer, free_ports

from mooncask.client.hashing import chain, root
from mooncask.client.socket_path import http_socket_path
from mooncask.client.worker_api import Hashing
from mooncask.conductor.serving.dispatch.engine_events import EngineEvents

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(1500)]

READY_SECONDS = 120.0
WORKERS = {"prefill": "first", "decode-1": "second", "decode-2": "first"}
"""Which server each is. Of two decode workers that have nothing to do the first gets a request."""
QUESTION = [{"role": "user", "content": "Tell me what is in this text. " + "All the world is a stage. " * 20}]


@dataclass
class Served:
    conductor: ConductorProcess
    servers: dict[str, VllmServer]
    events: str

    def client(self) -> Any:
        return openai.OpenAI(base_url=f"{self.conductor.url}/v1", api_key="none", max_retries=0, timeout=300)

    def chat(self, messages: list[dict[str, str]], **more: Any) -> Any:
        with self.client() as client:
            return client.chat.completions.create(model="smol", messages=messages, temperature=0, **more)

    def alone(self, tokens: list[int], max_tokens: int) -> list[int]:
        """vLLM's own answer, with a salt that nobody else has: nothing of it is cached."""
        body = {"model": "m", "prompt": tokens, "max_tokens": max_tokens, "temperature": 0, "return_token_ids": True}
        body |= {"cache_salt": f"alone {time.monotonic_ns()}", "add_special_tokens": False}
        answer = requests.post(f"{self.servers['first'].url}/v1/completions", json=body, timeout=300)
        answer.raise_for_status()
        made: list[int] = answer.json()["choices"][0]["token_ids"]
        return made

    def metric(self, server: str, name: str) -> float:
        return self.servers[server].metric(name)

    def kill(self, server: str) -> None:
        """In the middle of an answer."""
        assert self.metric(server, "vllm:num_requests_running") == 1
        self.servers[server].process.kill()


@pytest.fixture(scope="module")
def served(model: Path, daemon: DaemonProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("conductor")
    with contextlib.ExitStack() as stack:
        events = f"ipc://{stack.enter_context(tempfile.TemporaryDirectory(prefix='mk'))}/e"
        publishing = json.dumps({"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": events, "topic": "kv"})
        servers = {}
        for name, port in zip(("first", "second"), free_ports(2), strict=True):
            more = ["--kv-events-config", publishing] if name == "first" else []
            arguments = ["--enable-prompt-tokens-details", *more]
            server = VllmServer.begin(
                model, folder, port, daemon.socket_path, "kv_both", name=name, arguments=arguments, load="always"
            )
            servers[name] = stack.enter_context(server)
        settings = f"""
[policy]
admission = "none"
[limits]
prefix_seconds = 2.0
inline_tokens = 0
[classes.default]
ttft_seconds = 240.0
[models.smol]
tokenizer = "{model}"
"""
        for name, server in WORKERS.items():
            settings += f"""
[workers.{name}]
address = "{servers[server].url}"
role = "{name.partition("-")[0]}"
model = "smol"
node = "n1"
node_pages = "unix:{http_socket_path(daemon.socket_path)}"
slots = 4
gone_seconds = 20.0
"""
        settings = settings.replace("[workers.prefill]\n", f'[workers.prefill]\nkv_events = "{events}"\n')
        conductor = stack.enter_context(ConductorProcess.start(folder, settings))
        for server in servers.values():
            server.ready()
        wait_until_joined(conductor, len(WORKERS))
        yield Served(conductor, servers, events)


def wait_until_joined(conductor: ConductorProcess, count: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while conductor.log.read_text().count("keeps its KV in") < count:
        assert time.monotonic() < deadline, conductor.log.read_text()
        time.sleep(0.1)


def test_the_official_client_gets_the_tokens_of_vllm_alone(served: Served) -> None:
    tokens = prompt(11, 300)
    with served.client() as client:
        answer = client.completions.create(
            model="smol", prompt=tokens, max_tokens=24, temperature=0, extra_body={"return_token_ids": True}
        )
    assert answer.choices[0].token_ids == served.alone(tokens, 24)
    assert answer.usage.prompt_tokens == 300
    # One server computed the prompt, another loaded all its full blocks out of the store and answered.
    loaded = [served.metric(name, "vllm:mooncask_loaded_blocks_total") for name in served.servers]
    assert loaded == [0, 300 // BLOCK_TOKENS]
    assert served.metric("first", "vllm:mooncask_saved_blocks_total") >= 300 // BLOCK_TOKENS
    # The other one had the request while the first was still computing.
    assert served.metric("second", "vllm:mooncask_early_handovers_total") == 1
    assert served.metric("second", "vllm:mooncask_load_failed_blocks_total") == 0


def test_a_second_turn_finds_the_first_one(served: Served) -> None:
    first = served.chat(QUESTION, max_tokens=40)
    assert first.usage.prompt_tokens_details.cached_tokens < BLOCK_TOKENS
    said = {"role": "assistant", "content": first.choices[0].message.content}
    second = served.chat([*QUESTION, said, {"role": "user", "content": "And then?"}], max_tokens=8)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS


def test_stop_strings_end_an_answer_and_logprobs_are_told(served: Served) -> None:
    text = served.chat(QUESTION, max_tokens=24).choices[0].message.content
    stop = text[10:13]
    cut = served.chat(QUESTION, max_tokens=24, stop=[stop]).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.message.content == text[: text.index(stop)]
    told = served.chat(QUESTION, max_tokens=4, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(told) == 4
    for one in told:
        assert len(one.top_logprobs) == 3
        # Greedy: the chosen one is the likeliest, but for a tie.
        assert one.logprob == pytest.approx(one.top_logprobs[0].logprob, abs=1e-4) and one.logprob < 0


async def test_what_an_engine_publishes_is_what_it_holds_in_our_keys(served: Served) -> None:
    describe = {"mooncask": {"describe": True}}
    url = f"{served.servers['first'].url}/v1/completions"
    answer = await ask(url, {"model": "m", "prompt": [1], "max_tokens": 1, "kv_transfer_params": describe})
    told = answer["kv_transfer_params"]["mooncask"]["hashing"]
    family = told.pop("family")
    assert family["block_tokens"] == str(BLOCK_TOKENS)
    hashing, engines = Hashing(**told), EngineEvents()
    engines.described("prefill", hashing)
    fingerprint, salt = bytes.fromhex(hashing.fingerprint), bytes.fromhex(hashing.tenant_salt)
    async with engines.following("prefill", served.events):
        for number, cache_salt in ((21, None), (22, "tenant 7")):
            deadline, found = time.monotonic() + 60, {}
            while not found:  # events before the subscription was there are lost: another prompt each time
                assert time.monotonic() < deadline, "no event came"
                number += 100
                tokens = prompt(number, 70)
                asked = {"model": "m", "prompt": tokens, "max_tokens": 1, "cache_salt": cache_salt}
                await ask(url, asked)
                keys = chain(root(fingerprint, salt + (cache_salt or "").encode()), tokens, BLOCK_TOKENS)
                found = {name: blocks for name, blocks in engines.prefixes(keys).items() if blocks}
            assert found == {"prefill": 2}


async def ask(url: str, body: dict[str, Any]) -> Any:
    """And a moment for the event, which is published after the step."""
    answer = await asyncio.to_thread(requests.post, url, json=body, timeout=120)
    answer.raise_for_status()
    await asyncio.sleep(0.3)
    return answer.json()


def test_an_answer_outlives_its_server_unless_a_seed_has_drawn_it(served: Served) -> None:
    """Last in this module: it ends both servers."""
    tokens = prompt(12, 100)
    expected = served.alone(tokens, 120)
    with served.client() as client:
        begun = {"model": "smol", "prompt": tokens, "stream": True, "extra_body": {"return_token_ids": True}}
        stream = client.completions.create(max_tokens=120, temperature=0, **begun)
        chunks = [next(stream) for _ in range(5)]
        served.kill("second")
        chunks += list(stream)
        made = next(chunk.choices[0].token_ids for chunk in reversed(chunks) if chunk.choices)
        assert made == expected
        drawn = client.completions.create(max_tokens=120, temperature=0.8, seed=7, **begun)
        for _ in range(5):
            next(drawn)
        served.kill("first")
        with pytest.raises(openai.APIError, match="could not be finished"):
            list(drawn)
