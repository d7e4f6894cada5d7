"""Clients that are slow, leave, or ask for several answers, at a real door over scripted workers."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install mooncask[conductor]")

import aiohttp
from scripted_answers import right_answer
from scripted_worker import ANY
from scripted_world import World, until, world
from tiny_tokenizer import write_tiny_tokenizer

from mooncask.client.worker_api import Role
from mooncask.conductor.serving.door.door import Door
from mooncask.conductor.serving.door.gate import CallUsage, Identity
from mooncask.conductor.serving.main import listening
from mooncask.conductor.serving.text.texts import Texts

PROMPT = list(range(3, 60))


@dataclass
class Recording:
    """Lets everybody in and keeps what is recorded."""

    used: list[CallUsage] = field(default_factory=list)

    def identify(self, headers: Mapping[str, str]) -> Identity:
        return Identity()

    def public_tokens(self, identity: Identity, model: str, tokens: list[int]) -> int:
        return 0

    async def admit(self, identity: Identity, tokens: int) -> None:
        pass

    def record(self, identity: Identity, usage: CallUsage) -> None:
        self.used.append(usage)


@dataclass
class Served:
    there: World
    gate: Recording
    address: str
    session: aiohttp.ClientSession

    async def events(self, **asked: Any) -> list[str]:
        """Of one streamed answer."""
        body = self.body(stream=True, **asked)
        async with self.session.post(f"http://{self.address}/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
            return [line[6:] for line in (await response.text()).splitlines() if line.startswith("data: ")]

    def body(self, **asked: Any) -> dict[str, Any]:
        return {"model": "scripted", "prompt": PROMPT, "temperature": 0, "return_token_ids": True, **asked}


@contextlib.asynccontextmanager
async def served(folder: Path, client_seconds: float = 5.0, **workers: Any) -> AsyncIterator[Served]:
    tokenizer = write_tiny_tokenizer(folder)
    (tokenizer / "tokenizer_config.json").write_text("{}")  # no end token
    texts, gate = Texts({"scripted": tokenizer}, 0), Recording()
    async with world(**workers) as there, aiohttp.ClientSession() as session:
        try:
            door = Door(there.dispatcher, texts, gate, 1 << 20, client_seconds)
            async with listening(door.application(), "127.0.0.1:0", "door") as address:
                yield Served(there, gate, address, session)
        finally:
            texts.close()


def post(served: Served, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def test_a_client_that_takes_nothing_is_cut_off_and_holds_nobody_up(tmp_path: Path) -> None:
    async with served(tmp_path, client_seconds=0.5) as here:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            host, port = here.address.split(":")
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, (host, int(port)))
            await loop.sock_sendall(slow, post(here, here.body(max_tokens=30_000, stream=True)))
            await until(lambda: here.there.dispatcher.running, "it is not served")
            events = await here.events(max_tokens=20)
            assert events[-1] == "[DONE]"
            await until(lambda: not here.there.dispatcher.running, "the slow client keeps its place", 20)
        await here.there.assert_nothing_left()
        assert sorted(usage.outcome for usage in here.gate.used) == ["cancelled", "length"]


async def test_a_body_that_does_not_come_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path, client_seconds=0.3) as here:
        host, port = here.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(post(here, here.body(max_tokens=4))[:-20])
        answer = await reader.readuntil(b"}}")
        assert b"400" in answer.splitlines()[0]
        assert b"the body did not come within" in answer
        writer.close()
        await writer.wait_closed()
        assert not here.gate.used


async def test_each_of_n_answers_gets_its_end_when_some_end_before_others_begin(tmp_path: Path) -> None:
    async with served(tmp_path, decodes=1, slots=1) as here:
        events = await here.events(max_tokens=5, n=3)
        assert events[-1] == "[DONE]"
        choices = [json.loads(event)["choices"][0] for event in events[:-1]]
        ends = {choice["index"]: choice for choice in choices if choice["finish_reason"]}
        assert set(ends) == {0, 1, 2}
        assert all(end["token_ids"] == right_answer(PROMPT, 5) for end in ends.values())
        await here.there.assert_nothing_left()
        assert [usage.outcome for usage in here.gate.used] == ["length"] * 3


@pytest.mark.parametrize("answers", [1, 2])
async def test_an_answer_that_breaks_ends_in_one_error_event_and_no_end(tmp_path: Path, answers: int) -> None:
    async with served(tmp_path) as here:
        here.there.fault(ANY, Role.DECODE, ["breaks off"] * answers + ["refuses"] * 9)
        events = await here.events(max_tokens=12, n=answers)
        assert json.loads(events[-1])["error"]["code"] == "server_error"
        assert "[DONE]" not in events
        await here.there.assert_nothing_left()
        assert [usage.outcome for usage in here.gate.used] == ["failed"] * answers


@pytest.mark.parametrize("answers", [1, 2])
async def test_who_gets_an_error_instead_of_an_answer_pays_for_no_token_of_it(tmp_path: Path, answers: int) -> None:
    async with served(tmp_path) as here:
        here.there.fault(ANY, Role.DECODE, ["breaks off"] * answers + ["refuses"] * 9)
        body = here.body(max_tokens=12, n=answers)
        async with here.session.post(f"http://{here.address}/v1/completions", json=body) as response:
            assert response.status == 500
        await here.there.assert_nothing_left()
        assert [(usage.outcome, usage.output_tokens) for usage in here.gate.used] == [("failed", 0)] * answers


async def test_a_model_that_has_no_workers_now_is_another_thing_than_an_unknown_one(tmp_path: Path) -> None:
    async with served(tmp_path, decodes=0) as here:
        for model, status, code in [("scripted", 503, "service_unavailable"), ("other", 404, "model_not_found")]:
            body = here.body(max_tokens=4) | {"model": model}
            async with here.session.post(f"http://{here.address}/v1/completions", json=body) as response:
                assert response.status == status
                assert (await response.json())["error"]["code"] == code
                assert response.headers.get("Retry-After") == ("1" if status == 503 else None)


async def test_a_body_that_is_nested_without_end_is_the_caller_s_fault(tmp_path: Path) -> None:
    async with served(tmp_path) as here:
        for data in (b'{"model": ' + b"[" * 500_000, b'{"model": "\xff"}'):
            async with here.session.post(f"http://{here.address}/v1/completions", data=data) as response:
                assert response.status == 400
                assert (await response.json())["error"]["type"] == "invalid_request_error"
