"""A reserved place that somebody follows while it is written: it is nobody else's until the follower lets go."""

from store_driver import KIB, assert_books_balance, kv, opened, resident, soon, store_config

from mooncask.tiers.requests import PutRequest

MEMORY = store_config(None)


async def test_the_place_of_an_aborted_block_stays_out_of_use_until_its_followers_let_go() -> None:
    async with opened(MEMORY) as store:
        namespace = await kv(store)
        [reservation] = await store.reserve(namespace, [PutRequest(b"k", 64 * KIB)], soon())
        assert reservation is not None
        place = store.view(reservation.extent)
        place[:4] = b"left"
        first, second = store.hold_reserved(reservation), store.hold_reserved(reservation)
        store.abort(reservation)
        used = store.dram.used_bytes
        [other] = await store.reserve(namespace, [PutRequest(b"other", 64 * KIB)], soon())
        assert other is not None and other.extent.offset != first.offset
        store.drop(first)
        assert store.dram.used_bytes == used + other.extent.length and bytes(place[:4]) == b"left"
        store.drop(second)
        assert store.dram.used_bytes == other.extent.length
        store.abort(other)
        assert store.dram.used_bytes == 0
        assert_books_balance(store)


async def test_a_followed_place_becomes_the_block_and_a_follower_may_outlive_it() -> None:
    async with opened(MEMORY) as store:
        namespace = await kv(store)
        [reservation] = await store.reserve(namespace, [PutRequest(b"k", 4)], soon())
        assert reservation is not None
        followed = store.hold_reserved(reservation)
        store.view(followed)[:4] = b"1234"
        assert await store.commit(reservation)
        assert resident(store, namespace, b"k") == b"1234"
        await store.evict(namespace, [b"k"])
        assert bytes(store.view(followed)[:4]) == b"1234" and store.dram.used_bytes > 0
        store.drop(followed)
        assert store.dram.used_bytes == 0
        assert_books_balance(store)
