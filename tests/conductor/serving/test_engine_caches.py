"""What engines hold themselves, as their KV events tell it: found by our keys, bounded, and forgotten when a batch was lost."""

from typing import Any

import msgspec
import pytest
from scripted_vllm import BLOCK_TOKENS, FINGERPRINT, HASHING, SALT
from scripted_world import until

from mooncask.client.hashing import chain, root
from mooncask.client.worker_api import Hashing
from mooncask.conductor.serving.dispatch.engine_caches import EngineCache
from mooncask.conductor.serving.dispatch.engine_events import EngineEvents
from mooncask.conductor.serving.kv_events.events import Cleared, Removed, Stored

TOLD = msgspec.convert(HASHING, Hashing)
TOKENS = [3 + i * 7 % 200 for i in range(10)]
KEYS = chain(root(FINGERPRINT, SALT), TOKENS, BLOCK_TOKENS)


def stored(hashes: list[int], parent: int | None, tokens: list[int], **more: Any) -> Stored:
    return Stored(
        **{"lora": "", "medium": "GPU", "block_tokens": BLOCK_TOKENS, **more},
        hashes=hashes,
        parent=parent,
        tokens=tokens,
    )


def test_blocks_told_by_an_engine_are_found_by_our_keys_until_they_are_removed() -> None:
    cache = EngineCache(TOLD)
    cache.apply(stored([71], None, TOKENS[:4]))
    cache.apply(stored([72], 71, TOKENS[4:8], extra=[None]))
    assert cache.prefix(KEYS) == 2
    cache.apply(Removed([72], "CPU"))
    assert cache.prefix(KEYS) == 2
    cache.apply(Removed([72], "GPU"))
    assert cache.prefix(KEYS) == 1
    cache.apply(Cleared())
    assert cache.prefix(KEYS) == 0 and len(cache) == 0


def test_blocks_of_a_salted_prompt_are_found_under_its_salt_only() -> None:
    cache = EngineCache(TOLD)
    cache.apply(stored([71, 72], None, TOKENS[:8], extra=[["s"], None]))
    assert cache.prefix(KEYS) == 0
    assert cache.prefix(chain(root(FINGERPRINT, SALT + b"s"), TOKENS, BLOCK_TOKENS)) == 2


@pytest.mark.parametrize(
    "event",
    [
        stored([71], 5, TOKENS[:4]),
        stored([71], None, TOKENS[:3]),
        stored([71], None, TOKENS[:4], lora="a"),
        stored([71], None, TOKENS[:4], extra=[[["image", 3]]]),
        stored([71], None, TOKENS[:4], group=1),
        stored([71], None, TOKENS[:8], block_tokens=8),
        stored([71], None, TOKENS[:4], medium="CPU"),
    ],
)
def test_what_can_not_be_told_in_our_keys_is_passed_over(event: Stored) -> None:
    cache = EngineCache(TOLD)
    cache.apply(event)
    assert len(cache) == 0


def test_the_oldest_blocks_are_forgotten_beyond_the_bound() -> None:
    cache = EngineCache(TOLD, blocks_max=2)
    for number in range(5):
        cache.apply(stored([number], None, [number] * 4))
    assert len(cache) == 2
    assert cache.prefix(chain(root(FINGERPRINT, SALT), [4] * 4, BLOCK_TOKENS)) == 1


async def test_events_are_followed_and_a_lost_batch_empties_what_was_known() -> None:
    zmq = pytest.importorskip("zmq", reason="pyzmq is not installed: pip install mooncask[events]")
    engines = EngineEvents()
    engines.described("p0", TOLD)
    with zmq.Context() as context, context.socket(zmq.PUB) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        port = socket.bind_to_random_port("tcp://127.0.0.1")

        def publish(number: int, *events: object) -> None:
            batch = msgspec.msgpack.encode([1.5, events, 0])
            socket.send_multipart([b"kv", number.to_bytes(8, "big"), batch])

        async with engines.following("p0", f"tcp://127.0.0.1:{port}"):
            number = -1
            told = {"type": "BlockStored", "block_hashes": [71], "parent_block_hash": None, "token_ids": TOKENS[:4]}
            told |= {"block_size": BLOCK_TOKENS, "medium": "GPU"}

            def heard() -> bool:
                nonlocal number
                number += 1  # again until the subscription has reached the publisher
                publish(number, {"type": "SomethingNew", "x": 1}, told)
                return bool(engines.prefixes(KEYS))

            await until(heard, "no event was heard")
            assert engines.prefixes(KEYS) == {"p0": 1}
            publish(number + 5, {"type": "AllBlocksCleared"})
            await until(lambda: engines.lost, "a gap was not seen")
            assert engines.prefixes(KEYS) == {}
