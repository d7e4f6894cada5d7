"""The pure parts of KV events: how news become batches, what replay keeps, and what a hash is. On the wire: test_kv_events.py."""

import numpy as np
import pytest

from mooncask.daemon.kv_events.messages import AllBlocksCleared, BlockRemoved, BlockStored, block_hash
from mooncask.daemon.kv_events.news import News, Stored
from mooncask.daemon.kv_events.publisher import Replay


def stored(block: int, parent: int | None, first: int = 0) -> Stored:
    return Stored(block, parent, np.asarray([first, first + 1], "<u4").tobytes())


def test_neighbours_become_one_event_only_where_they_are_neighbours() -> None:
    news = News()
    news.stored(stored(1, None))
    news.stored(stored(2, 1, 10))
    news.stored(stored(9, 5, 20))
    news.removed(1)
    news.removed(2)
    assert news.take(100) == [
        BlockStored([1, 2], None, [0, 1, 10, 11], 2),
        BlockStored([9], 5, [20, 21], 2),
        BlockRemoved([1, 2]),
    ]
    assert not news and news.take(100) == []


def test_what_is_taken_in_parts_keeps_its_order() -> None:
    news = News()
    for block in range(1, 6):
        news.stored(stored(block, block - 1 or None, block))
    found = [event for _ in range(3) for event in news.take(2)]
    assert [event.block_hashes for event in found if isinstance(event, BlockStored)] == [[1, 2], [3, 4], [5]]
    assert [event.parent_block_hash for event in found if isinstance(event, BlockStored)] == [None, 2, 4]


@pytest.mark.parametrize("news", [News(blocks_max=3), News(bytes_max=3 * 8)])
def test_past_its_bounds_routers_are_told_to_forget_instead_of_something_wrong(news: News) -> None:
    for block in range(1, 5):
        news.stored(stored(block, block - 1 or None))
    assert news.take(100) == [AllBlocksCleared(), BlockStored([4], 3, [0, 1], 2)]
    assert news.dropped == 3


def test_replay_forgets_the_oldest_beyond_its_bounds() -> None:
    replay = Replay(bytes_max=100, batches_max=3)
    for number in range(5):
        replay.add(number.to_bytes(8, "big"), bytes(40 if number == 4 else 10))
    assert [int.from_bytes(kept.sequence, "big") for kept in replay.since(bytes(8))] == [2, 3, 4]
    replay.add((5).to_bytes(8, "big"), bytes(90))
    assert [len(kept.payload) for kept in replay.since(bytes(8))] == [90] and replay.bytes == 90


def test_a_hash_is_what_routers_make_of_the_keys_last_eight_bytes() -> None:
    assert block_hash(bytes(range(16))) == 0x08090A0B0C0D0E0F
