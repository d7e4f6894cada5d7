"""A worker that may tell its tokens: routers hear of the blocks that it stores, and of none that a salt hides."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import asyncio

import msgspec
from local_daemon import running_daemon
from small_engine import Request, SmallEngine

from mooncask.client.hashing import chain
from mooncask.daemon.kv_events.feed import KvEvents
from mooncask.daemon.kv_events.messages import block_hash
from mooncask.engine_adapter.transformers.kv_layout import KvBuffer, KvLayout
from mooncask.engine_adapter.transformers.store_link import StoreAddress, StoreLink

LAYOUT = KvLayout(layers=2, kv_heads=1, head_dim=8, block_tokens=16, dtype="float32")
TOKENS = list(range(500, 500 + 3 * 16))


@pytest.mark.parametrize(
    ("publish", "salt", "told"), [(True, "", True), (True, "a tenant's", False), (False, "", False)]
)
async def test_only_what_may_be_told_is_told(publish: bool, salt: str, told: bool) -> None:
    async with running_daemon({"kv_events.endpoint": "tcp://127.0.0.1:0"}) as daemon:
        events = await KvEvents.open(daemon.service, daemon.config)
        link = StoreLink(StoreAddress(daemon.path, publish_tokens=publish), "tests", {"model": "m"}, LAYOUT)
        keys = await asyncio.to_thread(store, link, salt)
        await events.close()
    heard = [event for kept in events.publisher.kept(0) for event in msgspec.msgpack.decode(kept.payload)[1]]
    stored = [event for event in heard if event["type"] == "BlockStored"]
    if not told:
        assert stored == []
        return
    assert [(event["block_hashes"], event["token_ids"]) for event in stored] == [
        ([block_hash(key) for key in keys], TOKENS)
    ]


def store(link: StoreLink, salt: str) -> list[bytes]:
    session = link.session()
    keys = session.keys(TOKENS, salt)
    assert session.store(keys, range(3), KvBuffer(LAYOUT, len(TOKENS))) == 3
    namespace = link.connect()[1]
    link.close()
    assert salt or keys == chain(namespace.root(), TOKENS, 16)
    return keys


async def test_routers_hear_the_tokens_of_what_vllm_saves_when_it_may_tell_them() -> None:
    async with running_daemon({"kv_events.endpoint": "tcp://127.0.0.1:0"}) as daemon:
        events = await KvEvents.open(daemon.service, daemon.config)
        await asyncio.to_thread(save, daemon.path, True, 500)
        await asyncio.to_thread(save, daemon.path, False, 900)
        await events.close()
    heard = [event for kept in events.publisher.kept(0) for event in msgspec.msgpack.decode(kept.payload)[1]]
    told = [event["token_ids"] for event in heard if event["type"] == "BlockStored"]
    assert [token for tokens in told for token in tokens] == TOKENS


def save(socket: str, publish: bool, first: int) -> None:
    """The blocks of a plain request, one at a time, and those of a salted one."""
    with SmallEngine(socket, publish_tokens=publish, lease_bytes=1) as engine:
        for name, salt in (("plain", None), ("salted", "x")):
            one = Request(name, [first + i for i in range(len(TOKENS))], cache_salt=salt)
            engine.scheduler.arrived(one)
            engine.compute(one, [0, 1, 2])
            engine.settle()
        assert engine.counters.totals["saved_blocks"] == 6
