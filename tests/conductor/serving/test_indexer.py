"""The index for other routers: from KV events, a daemon's own and hand-made ones, to how much of a prompt is where."""

import asyncio
import contextlib
import re
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

zmq_asyncio = pytest.importorskip("zmq.asyncio", reason='pyzmq is not installed: pip install "mooncask[events]"')

import requests
import zmq
from conductor_process import ConductorProcess
from local_daemon import running_daemon
from raw_client import RawClient, key, payload

from mooncask.client import wire
from mooncask.conductor.serving.config import IndexerSection, load_config
from mooncask.conductor.serving.indexer.hashes import sequence_hashes
from mooncask.conductor.serving.indexer.opening import indexing
from mooncask.conductor.serving.main import listening
from mooncask.daemon.kv_events.feed import KvEvents
from mooncask.daemon.kv_events.publisher import Publisher
from mooncask.errors import ConfigError

SECONDS = 10.0
BLOCK = 4


def prompt(blocks: int, start: int = 0) -> list[int]:
    return list(range(start, start + blocks * BLOCK))


def stored(names: list[int], tokens: list[int], parent: int | None = None, **more: Any) -> dict[str, Any]:
    told = {"block_hashes": names, "parent_block_hash": parent, "token_ids": tokens, "block_size": BLOCK}
    return {"type": "BlockStored", **told, "lora_id": None, "medium": "GPU", "lora_name": None, **more}


def removed(names: list[int], medium: str = "GPU") -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": names, "medium": medium}


@dataclass
class Engine:
    """A publisher as engines are, with a replay socket: what it says is written in the test."""

    context: Any
    number: int = 0
    kept: list[bytes] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    """Numbers that are published and never kept."""

    def __post_init__(self) -> None:
        self.pub, self.router = self.context.socket(zmq.PUB), self.context.socket(zmq.ROUTER)
        self.endpoint, self.replay = self._bound(self.pub), self._bound(self.router)
        self.task = asyncio.create_task(self._serve())

    def _bound(self, socket: Any) -> str:
        socket.set(zmq.LINGER, 0)
        return f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"

    async def say(self, *events: dict[str, Any], heard: bool = True) -> None:
        body = msgspec.msgpack.encode([0.0, list(events), 0])
        self.kept.append(body)
        if heard:
            await self.pub.send_multipart([b"", self.number.to_bytes(8, "big"), body])
        self.number += 1

    async def start_anew(self) -> None:
        self.number, self.kept = 0, []

    async def _serve(self) -> None:
        while True:
            who, empty, since = await self.router.recv_multipart()
            for number in range(int.from_bytes(since, "big"), len(self.kept)):
                if number not in self.lost:
                    await self.router.send_multipart([who, empty, number.to_bytes(8, "big"), self.kept[number]])
            await self.router.send_multipart([who, empty, b"\xff" * 8, b""])

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.pub.close(0)
        self.router.close(0)


@dataclass
class World:
    url: str
    session: aiohttp.ClientSession
    context: Any
    engines: list[Engine] = field(default_factory=list)

    def engine(self) -> Engine:
        self.engines.append(Engine(self.context))
        return self.engines[-1]

    async def post(self, path: str, expect: int = 200, **body: Any) -> Any:
        async with self.session.post(f"{self.url}/{path}", json=body) as answer:
            assert answer.status == expect, await answer.text()
            return await answer.json()

    async def register(self, name: str, engine: Engine, replay: bool = True, **more: Any) -> None:
        told = {"endpoint": engine.endpoint, "type": "vLLM", "modelname": "m", "instance_id": name, "block_size": BLOCK}
        await self.post("register", **told, **({"replay_endpoint": engine.replay} if replay else {}), **more)

    async def query(self, tokens: list[int], **more: Any) -> dict[str, Any]:
        answer = await self.post("query", model="m", token_ids=tokens, block_size=BLOCK, **more)
        return dict(answer["default"])

    async def until(self, blocks: int, tokens: list[int], name: str = "e", **more: Any) -> dict[str, Any]:
        """What is told of the engine once so many blocks match."""
        return await self.until_told(lambda found: found["longest_matched"] == blocks * BLOCK, tokens, name, **more)

    async def until_told(
        self, wanted: Callable[[dict[str, Any]], bool], tokens: list[int], name: str = "e", **more: Any
    ) -> dict[str, Any]:
        async with asyncio.timeout(SECONDS):
            while True:
                found = dict((await self.query(tokens, **more))[name])
                if wanted(found):
                    return found
                await asyncio.sleep(0.01)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    context = zmq_asyncio.Context()
    async with contextlib.AsyncExitStack() as stack:
        app = await stack.enter_async_context(indexing(IndexerSection(listen="127.0.0.1:0", hash_seed=7)))
        address = await stack.enter_async_context(listening(app, "127.0.0.1:0", "indexer.listen"))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        made = World(f"http://{address}", session, context)
        yield made
        for engine in made.engines:
            await engine.close()
    context.term()


async def test_prefixes_are_told_by_medium_and_end_at_the_first_miss(world: World) -> None:
    engine = world.engine()
    await engine.say(stored([1, 2, 3], prompt(3)), stored([1, 2], prompt(2), medium="CPU"), heard=False)
    await world.register("e", engine)
    found = await world.until(3, [*prompt(3), 99, 99, 99, 99, 5])
    assert found == {"longest_matched": 12, "GPU": 12, "CPU": 8, "DISK": 0, "DP": {"0": 12}}
    await engine.say(removed([2]))
    await world.until(3, prompt(3))  # block 2 is in host memory still
    await world.until_told(lambda found: found["GPU"] == 8, prompt(3))
    await engine.say(removed([2], "CPU"))
    await world.until(1, prompt(3))
    await engine.say({"type": "AllBlocksCleared"})
    await world.until(0, prompt(3))


async def test_what_was_missed_is_asked_for_again_and_a_hole_is_not_believed(world: World) -> None:
    engine = world.engine()
    await world.register("e", engine)
    await engine.say(stored([1], prompt(1)), heard=False)
    await said_until_heard(world, engine, 1)
    await engine.say(stored([2], prompt(1, 4), parent=1), heard=False)
    await engine.say(stored([3], prompt(1, 8), parent=2))
    await world.until(3, prompt(3))
    engine.lost.add(engine.number)
    await engine.say(removed([1]), heard=False)
    await engine.say(stored([9], prompt(1, 100)))
    await world.until(0, prompt(3))
    await world.until(1, prompt(1, 100))
    assert (await status(world))["gaps"] >= 2


async def said_until_heard(world: World, engine: Engine, blocks: int) -> None:
    """A subscription takes effect a moment after it was made."""
    async with asyncio.timeout(SECONDS):
        while (await world.query(prompt(blocks)))["e"]["longest_matched"] != blocks * BLOCK:
            await engine.say()
            await asyncio.sleep(0.02)


async def status(world: World) -> dict[str, int]:
    async with world.session.get(f"{world.url}/status") as answer:
        return dict(await answer.json())


async def test_an_engine_that_starts_anew_has_nothing_of_before(world: World) -> None:
    engine = world.engine()
    await world.register("e", engine)
    await engine.say(stored([1, 2], prompt(2)))
    await said_until_heard(world, engine, 2)
    await engine.start_anew()
    await engine.say(stored([5], prompt(1)))
    found = await world.until(1, prompt(2))
    assert found["GPU"] == BLOCK


async def test_engines_are_apart_by_tenant_model_salt_adapter_and_block_size(world: World) -> None:
    engine = world.engine()
    await engine.say(stored([1], prompt(1)), stored([2], prompt(1), lora_name="sql"), heard=False)
    for name, more in {"e": {}, "salted": {"additionalsalt": "w8"}, "other": {"tenant_id": "t2"}}.items():
        await world.register(name, engine, **more)
    await world.until(1, prompt(1))
    assert set(await world.query(prompt(1))) == {"e"}
    assert set(await world.query(prompt(1), cache_salt="w8")) == {"salted"}
    assert set((await world.post("query", model="m", token_ids=prompt(1), block_size=BLOCK, tenant_id="t2"))["t2"]) == {
        "other"
    }
    assert (await world.query(prompt(1), lora_name="none"))["e"]["longest_matched"] == 0
    await world.until(1, prompt(1), lora_name="sql")
    assert (await world.post("query", model="x", token_ids=prompt(1), block_size=BLOCK))["default"] == {}
    assert (await world.post("query", model="m", token_ids=prompt(1), block_size=8))["default"] == {}


async def test_ranks_are_counted_apart_and_unregistering_ends_them(world: World) -> None:
    first, second = world.engine(), world.engine()
    await first.say(stored([1], prompt(1)), heard=False)
    await second.say(stored([7, 8], prompt(2)), heard=False)
    await world.register("e", first, dp_rank=0)
    await world.register("e", second, dp_rank=1)
    await world.until_told(lambda found: found["DP"] == {"0": 4, "1": 8}, prompt(2))
    answer = await world.post("unregister", type="vLLM", modelname="m", instance_id="e", block_size=BLOCK, dp_rank=1)
    assert answer["removed_instances"] == ["e|default|1"]
    await world.until(1, prompt(2))
    assert (await world.post("unregister", instance_id="e"))["removed_instances"] == ["e|default|0"]
    assert await world.query(prompt(2)) == {}


async def test_a_prompt_is_asked_for_by_its_rolling_hashes_too(world: World) -> None:
    engine = world.engine()
    await engine.say(stored([1, 2, 3], prompt(3)), heard=False)
    await world.register("e", engine)
    await world.until(3, prompt(3))
    hashes = sequence_hashes(prompt(5), BLOCK, 7)
    for name in ("seq_hashes", "block_hash"):
        found = await world.post("query_by_hash", model="m", block_size=BLOCK, instance_id="e", **{name: hashes})
        assert found["default"]["e"]["longest_matched"] == 12
    found = await world.post(
        "query_by_hash", model="m", block_size=BLOCK, seq_hashes=sequence_hashes(prompt(3), BLOCK, 8)
    )
    assert found["default"]["e"]["longest_matched"] == 0


async def test_a_daemon_of_our_own_is_followed(world: World) -> None:
    """What its store holds is told to routers through the index, and what it deletes is not."""
    settings = {"kv_events.endpoint": "tcp://127.0.0.1:0", "kv_events.replay_endpoint": "tcp://127.0.0.1:0"}
    async with running_daemon(settings) as daemon:
        events = await KvEvents.open(daemon.service, daemon.config)
        client = await daemon.client()
        try:
            publisher = events.publisher
            register = {"modelname": "m", "instance_id": "e", "block_size": BLOCK, "type": "Mooncask"}
            replay = {"endpoint": publisher.endpoint, "replay_endpoint": publisher.replay_endpoint}
            await world.post("register", **register, **replay)
            namespace = await client.open(family={"model": "m", "block_tokens": str(BLOCK)})
            await _put(client, namespace, prompt(3))
            found = await _heard(world, publisher)
            assert found == {"longest_matched": 12, "GPU": 0, "CPU": 12, "DISK": 0, "DP": {"0": 12}}
            await client.ask(wire.Done, wire.Evict, namespace, [key(3)])
            await world.until(2, prompt(3))
        finally:
            await client.close()
            await events.close()


async def _put(client: RawClient, namespace: int, tokens: list[int]) -> None:
    keys = [key(number) for number in range(1, len(tokens) // BLOCK + 1)]
    reserved = await client.reserve(namespace, {one: payload(1) for one in keys}, parents=[b"", *keys[:-1]])
    ids = [struct.pack(f"<{BLOCK}I", *tokens[i : i + BLOCK]) for i in range(0, len(tokens), BLOCK)]
    pair = reserved.reservations, reserved.generations
    assert not (await client.ask(wire.Committed, wire.Commit, *pair, 5000, token_ids=ids)).failures


async def _heard(world: World, publisher: Publisher) -> dict[str, Any]:
    """A subscription takes effect a moment after it was made: the daemon speaks until it is heard."""
    async with asyncio.timeout(SECONDS):
        while not (found := dict((await world.query(prompt(3)))["e"]))["longest_matched"]:
            publisher.publish(msgspec.msgpack.encode([0.0, [], 0]))
            await asyncio.sleep(0.02)
    return found


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("register", {"endpoint": "http://x", "modelname": "m", "instance_id": "e", "block_size": 4}, "endpoint"),
        ("register", {"endpoint": "tcp://x:1", "modelname": "m", "instance_id": "e", "block_size": 0}, "block_size"),
        ("register", {"endpoint": "tcp://x:1", "modelname": "m", "block_size": 4}, "instance_id"),
        ("query", {"model": "m", "block_size": 4, "token_ids": [-1]}, "token_ids"),
        ("query", {"model": "m", "block_size": 4, "token_ids": "abc"}, "token_ids"),
        ("query_by_hash", {"model": "m", "block_size": 4}, "seq_hashes"),
    ],
)
async def test_wrong_questions_are_told_what_is_wrong(world: World, path: str, body: dict[str, Any], word: str) -> None:
    assert word in (await world.post(path, expect=400, **body))["error"]


async def test_a_token_is_asked_for_where_there_is_one(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        app = await stack.enter_async_context(indexing(IndexerSection(listen="127.0.0.1:0", token="let-me-in")))
        address = await stack.enter_async_context(listening(app, "127.0.0.1:0", "indexer.listen"))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        for token, status in (("", 401), ("let-me-i", 401), ("let-me-in", 200)):
            async with session.get(f"http://{address}/status", headers={"Authorization": f"Bearer {token}"}) as answer:
                assert answer.status == status
    path = tmp_path / "c.toml"
    path.write_text('[indexer]\nlisten = "0.0.0.0:1"\n')
    with pytest.raises(ConfigError, match=r"indexer\.token"):
        load_config(path, {})


def test_a_conductor_serves_the_index_on_a_listener_of_its_own(tmp_path: Path) -> None:
    with ConductorProcess.start(tmp_path, '[indexer]\nlisten = "127.0.0.1:0"\nhash_seed = 1337\n') as conductor:
        found = re.search("routers ask the index at (http://[0-9.:]+)", conductor.log.read_text())
        assert found is not None
        assert requests.get(f"{found[1]}/status", timeout=10).json()["seed"] == 1337
        register = {"endpoint": "tcp://127.0.0.1:9", "modelname": "m", "instance_id": "e", "block_size": 16}
        assert requests.post(f"{found[1]}/register", json=register, timeout=10).status_code == 200
        assert requests.post(f"{conductor.url}/query", json={}, timeout=10).status_code == 404
