"""KV events: what routers hear, in vLLM's own shape, in order, numbered, and again when they ask.

The shapes are written down here once more, after vLLM 0.32's classes; `tests/engines/` decodes with those themselves.
"""

import asyncio
import re
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from daemon_process import DaemonProcess, Setting
from local_daemon import LocalDaemon, running_daemon
from raw_client import RawClient, key, payload

from mooncask.client import wire
from mooncask.client.local import LocalClient
from mooncask.daemon.config_source import load_config
from mooncask.daemon.kv_events.feed import KvEvents
from mooncask.daemon.kv_events.publisher import END, Publisher
from mooncask.errors import AddressInUse, BadRequest, ConfigError

SECONDS = 10.0
TOKENS = 16


class SeenStored(msgspec.Struct, tag="BlockStored", forbid_unknown_fields=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class SeenRemoved(msgspec.Struct, tag="BlockRemoved", forbid_unknown_fields=True):
    block_hashes: list[int]
    medium: str | None


class SeenCleared(msgspec.Struct, tag="AllBlocksCleared", forbid_unknown_fields=True):
    pass


class SeenBatch(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    ts: float
    events: list[SeenStored | SeenRemoved | SeenCleared]
    data_parallel_rank: int


Seen = SeenStored | SeenRemoved | SeenCleared


@dataclass
class Router:
    """A subscriber as routers are: it subscribes by a topic's beginning, and asks again for what it missed."""

    context: zmq.asyncio.Context
    events: KvEvents
    topic: bytes = b""

    def __post_init__(self) -> None:
        self.socket = self.context.socket(zmq.SUB)
        self.socket.connect(self.events.publisher.endpoint)
        self.socket.subscribe(self.topic)

    async def message(self) -> list[bytes]:
        return await asyncio.wait_for(self.socket.recv_multipart(), SECONDS)

    async def batch(self) -> list[Seen]:
        return msgspec.msgpack.decode((await self.message())[2], type=SeenBatch).events

    async def missed(self, since: int) -> list[tuple[int, list[Seen]]]:
        """What the replay address gives from number `since` on."""
        dealer = self.context.socket(zmq.DEALER)
        try:
            dealer.connect(self.events.publisher.replay_endpoint)
            await dealer.send_multipart((b"", since.to_bytes(8, "big")))
            found = []
            while True:
                _, number, body = await asyncio.wait_for(dealer.recv_multipart(), SECONDS)
                if number == END:
                    return found
                batch = msgspec.msgpack.decode(body, type=SeenBatch)
                found.append((int.from_bytes(number, "big"), batch.events))
        finally:
            dealer.close(0)


@dataclass
class World:
    daemon: LocalDaemon
    events: KvEvents
    client: RawClient
    router: Router


@asynccontextmanager
async def world(**settings: Any) -> AsyncIterator[World]:
    """A daemon that publishes, a writer, and a router that has subscribed and hears."""
    told = {f"kv_events.{name}": value for name, value in settings.items()}
    everything = {
        "kv_events.endpoint": "tcp://127.0.0.1:0",
        "kv_events.replay_endpoint": "tcp://127.0.0.1:0",
        **told,
    }
    context = zmq.asyncio.Context()
    async with running_daemon(everything) as daemon:
        events = await KvEvents.open(daemon.service, daemon.config)
        client = await daemon.client()
        router = Router(context, events)
        try:
            await heard(router, events)
            yield World(daemon, events, client, router)
        finally:
            await client.close()
            router.socket.close(0)
            await events.close()
            await asyncio.to_thread(context.term)


async def heard(router: Router, events: KvEvents) -> None:
    """A subscription takes effect a moment after it was made: the daemon says something until the router hears it."""
    async with asyncio.timeout(SECONDS):
        while not await router.socket.poll(20):
            events.publisher.publish(msgspec.msgpack.encode([0.0, [], 0]))
    while await router.socket.poll(50):
        await router.socket.recv_multipart()


def ids_of(first: int, count: int = TOKENS) -> list[int]:
    return list(range(first, first + count))


def packed(ids: list[int]) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


async def store(client: RawClient, namespace: int, numbers: list[int], tokens: bool = True) -> None:
    """Blocks of one chain; block n's tokens begin with 100 n."""
    keys = [key(number) for number in numbers]
    parents = [b"", *keys[:-1]] if numbers[0] == 1 else [key(number - 1) for number in numbers]
    reserved = await client.reserve(namespace, {one: payload(1) for one in keys}, parents=parents)
    ids = [packed(ids_of(100 * number)) for number in numbers] if tokens else []
    committed = await client.ask(
        wire.Committed, wire.Commit, reserved.reservations, reserved.generations, 5000, token_ids=ids
    )
    assert not committed.failures


async def test_blocks_that_were_stored_with_their_tokens_are_told_as_one_event_of_their_chain() -> None:
    async with world() as w:
        namespace = await w.client.open()
        await store(w.client, namespace, [1, 2, 3])
        (event,) = await w.router.batch()
        assert event == SeenStored([1, 2, 3], None, ids_of(100) + ids_of(200) + ids_of(300), TOKENS, None, "CPU", None)
        await store(w.client, namespace, [4])
        (event,) = await w.router.batch()
        assert event == SeenStored([4], 3, ids_of(400), TOKENS, None, "CPU", None)


async def test_a_block_that_left_is_told_once_it_is_gone_from_every_tier() -> None:
    async with world() as w:
        namespace = await w.client.open()
        await store(w.client, namespace, [1, 2])
        await w.router.batch()
        await w.client.ask(wire.Done, wire.Evict, namespace, [key(2), key(1)])
        assert await w.router.batch() == [SeenRemoved([2, 1], "CPU")]
        assert w.daemon.service.counters["kv_events_removed"] == 2


async def test_without_tokens_nothing_is_told_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="mooncask.daemon.kv_events.feed")
    async with world() as w:
        namespace = await w.client.open("quiet")
        await store(w.client, namespace, [1], tokens=False)
        await store(w.client, namespace, [2], tokens=False)
        await w.client.ask(wire.Done, wire.Evict, namespace, [key(1)])
        spoken = await w.client.open("spoken")
        await store(w.client, spoken, [1])
        (event,) = await w.router.batch()
        assert isinstance(event, SeenStored), "nothing came of the quiet namespace before it"
    told = [record.message for record in caplog.records if "without token ids" in record.message]
    assert len(told) == 1 and "namespace quiet" in told[0]


async def test_a_store_that_starts_empty_tells_routers_to_forget_and_replays_what_they_missed() -> None:
    async with world() as w:
        namespace = await w.client.open()
        await store(w.client, namespace, [1])
        await w.router.batch()
        missed = await w.router.missed(0)
        assert [number for number, _ in missed] == list(range(len(missed)))
        told = [event for _, events in missed for event in events]
        assert told == [SeenCleared(), SeenStored([1], None, ids_of(100), TOKENS, None, "CPU", None)]
        last = missed[-1][0]
        assert await w.router.missed(last) == [missed[-1]]
        assert await w.router.missed(last + 1) == []


async def test_malformed_questions_are_counted_and_the_next_is_answered() -> None:
    async with world() as w:
        dealer = w.router.context.socket(zmq.DEALER)
        dealer.connect(w.events.publisher.replay_endpoint)
        await dealer.send_multipart((b"", b"since when?"))
        await dealer.send_multipart((b"", (1 << 40).to_bytes(8, "big")))
        assert await asyncio.wait_for(dealer.recv_multipart(), SECONDS) == [b"", END, b""]
        dealer.close(0)
        assert w.daemon.service.counters["kv_events_replays_malformed"] == 1


async def test_topic_and_numbers_frame_every_message() -> None:
    async with world(topic="kv@{node}@tiny") as w:
        namespace = await w.client.open()
        await store(w.client, namespace, [1])
        topic, first, _ = await w.router.message()
        await store(w.client, namespace, [2])
        _, second, _ = await w.router.message()
        assert topic == f"kv@{w.daemon.config.node.name}@tiny".encode()
        assert int.from_bytes(second, "big") == int.from_bytes(first, "big") + 1


async def test_only_the_namespaces_that_are_named_are_told_of() -> None:
    async with world(namespaces=["mine"]) as w:
        await store(w.client, await w.client.open("other"), [1])
        await store(w.client, await w.client.open("mine"), [1, 2])
        (event,) = await w.router.batch()
        assert event.block_hashes == [1, 2]


async def test_older_routers_get_arrays() -> None:
    async with world(encoding="arrays") as w:
        await store(w.client, await w.client.open(), [1])
        _, _, body = await w.router.message()
        assert msgspec.msgpack.decode(body)[1] == [["BlockStored", [1], None, ids_of(100), TOKENS, None, "CPU", None]]


async def test_token_ids_of_a_wrong_length_are_refused_and_the_place_stays_open() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        reserved = await client.reserve(namespace, {key(1): payload(1)})
        pair = (reserved.reservations, reserved.generations, 1000)
        refused = await client.refused(wire.Commit, *pair, token_ids=[packed(ids_of(0, 15))])
        assert isinstance(refused, BadRequest) and "60 bytes of token ids for a block of 16 tokens" in str(refused)
        assert isinstance(await client.refused(wire.Commit, *pair, token_ids=[b"", b""]), BadRequest)
        committed = await client.ask(wire.Committed, wire.Commit, *pair, token_ids=[packed(ids_of(0))])
        assert committed.states == bytes([wire.CommitState.PUBLISHED])
        await client.close()


async def test_tokens_reach_no_disk(tmp_path: Path) -> None:
    ids = [0x5EC0DE00 + number for number in range(TOKENS)]
    async with running_daemon({"nvme.path": str(tmp_path), "kv_events.endpoint": "tcp://127.0.0.1:0"}) as daemon:
        events = await KvEvents.open(daemon.service, daemon.config)
        client = await daemon.client()
        namespace = await client.open()
        reserved = await client.reserve(namespace, {key(1): payload(1)})
        await client.ask(
            wire.Committed,
            wire.Commit,
            reserved.reservations,
            reserved.generations,
            5000,
            durable=True,
            token_ids=[packed(ids)],
        )
        await client.close()
        await events.close()
    written = everything_in(tmp_path)
    assert payload(1)[:64] in written, "the block is on disk"
    assert packed(ids[:1]) not in written


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_an_address_in_use_is_an_error_with_the_settings_name() -> None:
    async with world() as w:
        section = msgspec.structs.replace(w.daemon.config.kv_events, endpoint=w.events.publisher.endpoint)
        with pytest.raises(AddressInUse, match=r"kv_events\.endpoint"):
            await Publisher.open(section, b"", w.daemon.service.counters)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"endpoint": "127.0.0.1:5557"}, "tcp://host:port"),
        ({"endpoint": "tcp://127.0.0.1:99999"}, "tcp://host:port"),
        ({"endpoint": "tcp://0.0.0.0:5557"}, "kv_events.public"),
        ({"endpoint": "tcp://*:5557"}, "kv_events.public"),
        ({"endpoint": "tcp://127.0.0.1:1", "replay_endpoint": "tcp://10.0.0.1:2"}, "kv_events.public"),
        ({"replay_endpoint": "tcp://127.0.0.1:2"}, "needs kv_events.endpoint"),
        ({"connect": True}, "tcp://host:port"),
    ],
)
def test_addresses_that_are_none_or_would_show_prompts_to_others_are_refused(
    settings: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        load_config(None, {}, {"kv_events": settings})


@pytest.mark.parametrize(
    "settings",
    [
        {"endpoint": "ipc:///run/mooncask/events"},
        {"endpoint": "tcp://[::1]:5557"},
        {"endpoint": "tcp://*:5557", "public": True},
        {"endpoint": "tcp://router.example.org:5557", "connect": True},
    ],
)
def test_addresses_that_are_fine(settings: dict[str, object]) -> None:
    assert load_config(None, {}, {"kv_events": settings}).kv_events.endpoint == settings["endpoint"]


def test_a_daemon_of_its_own_publishes_what_a_client_stores_with_its_tokens(tmp_path: Path) -> None:
    settings: dict[str, Setting] = {
        "kv_events.endpoint": "tcp://127.0.0.1:0",
        "kv_events.replay_endpoint": "tcp://127.0.0.1:0",
    }
    with DaemonProcess.start(tmp_path, settings) as daemon, LocalClient.connect(daemon.socket_path) as client:
        replay = re.search(r"replay at (tcp://\S+)", daemon.log_path.read_text())
        assert replay is not None
        namespace = client.open_namespace("kv-told", family={"model": "m", "block_tokens": str(TOKENS)}, mode="memory")
        with client.reserve(namespace, [key(1)], [64], tokens=[TOKENS]) as reserved:
            reserved[0].memory[:] = bytes(64)
            reserved.commit(token_ids=[ids_of(7)])
        context = zmq.Context()
        router = context.socket(zmq.DEALER)
        router.setsockopt(zmq.RCVTIMEO, int(SECONDS * 1000))
        router.connect(replay[1])
        deadline = time.monotonic() + SECONDS
        while b"BlockStored" not in (heard := latest_batch(router)):
            assert time.monotonic() < deadline, "the block is not told of"
        router.close(0)
        context.term()
    batch = msgspec.msgpack.decode(heard, type=SeenBatch)
    assert batch.events[-1] == SeenStored([1], None, ids_of(7), TOKENS, None, "CPU", None)


def latest_batch(router: "zmq.Socket[bytes]") -> bytes:
    """The last batch that is kept."""
    router.send_multipart((b"", bytes(8)))
    last = b""
    while (parts := router.recv_multipart())[1] != END:
        last = parts[2]
    return last
