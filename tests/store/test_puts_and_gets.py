"""One store, DRAM only: what a put promises and what a reader may rely on."""

import asyncio

import pytest
import xxhash
from store_driver import (
    KIB,
    MIB,
    assert_books_balance,
    bucket,
    content,
    kv,
    opened,
    put,
    resident,
    settled,
    soon,
    store_config,
)

from mooncask.errors import (
    BadRequest,
    BlockTooLarge,
    Busy,
    DigestMismatch,
    EmptyBlock,
    FamilyMismatch,
    LengthMismatch,
    PinLimitExceeded,
    TierDegraded,
    UnknownReservation,
)
from mooncask.tiers.block import WriteMode
from mooncask.tiers.namespace import NamespaceSpec
from mooncask.tiers.requests import PutRequest

MEMORY = store_config(None)


async def test_a_committed_block_is_read_back_byte_for_byte() -> None:
    async with opened(MEMORY) as store:
        namespace = await kv(store)
        payload = bytes(range(256)) * 17
        assert await put(store, namespace, b"k" * 16, payload)
        assert resident(store, namespace, b"k" * 16) == payload
        assert store.checksum(namespace, b"k" * 16) == xxhash.xxh3_128_digest(payload)
        assert_books_balance(store)


async def test_a_reserved_block_is_invisible_until_commit() -> None:
    async with opened(MEMORY) as store:
        namespace = await kv(store)
        [reservation] = await store.reserve(namespace, [PutRequest(b"k", 10)], soon())
        assert reservation is not None
        assert len(store.match(namespace, [b"k"])) == 0 and store.hold(namespace, [b"k"]) == [None]
        store.abort(reservation)
        assert_books_balance(store)


async def test_the_first_commit_of_a_key_wins_and_the_second_is_answered_have_it() -> None:
    async with opened(MEMORY) as store:
        namespace = await kv(store)
        requests = [PutRequest(b"k", 4)]
        [first] = await store.reserve(namespace, requests, soon())
        [second] = await store.reserve(namespace, requests, soon())
        assert first is not None and second is not None
        store.view(first.extent)[:4] = b"1111"
        store.view(second.extent)[:4] = b"2222"
        assert await store.commit(second) is True
        assert await store.commit(first) is False
        assert resident(store, namespace, b"k") == b"2222"
        assert await store.reserve(namespace, requests, soon()) == [None]
        assert_books_balance(store)


async def test_an_object_namespace_replaces_instead() -> None:
    async with opened(MEMORY) as store:
        namespace = await bucket(store)
        await put(store, namespace, b"name", b"old")
        [held] = store.hold(namespace, [b"name"])
        await put(store, namespace, b"name", b"newer")
        assert resident(store, namespace, b"name") == b"newer"
        assert held is not None and content(store, held) == b"old", "a reader keeps the version it has"
        store.drop(held)
        await put(store, namespace, b"empty", b"")
        assert resident(store, namespace, b"empty") == b""
        assert_books_balance(store)


async def test_another_length_for_an_existing_key_is_refused_by_name() -> None:
    async with opened(MEMORY) as store:
        namespace = await kv(store)
        [late] = await store.reserve(namespace, [PutRequest(b"k", 5)], soon())
        await put(store, namespace, b"k", b"four")
        with pytest.raises(LengthMismatch, match=r"stored with 4 bytes and 5"):
            await store.reserve(namespace, [PutRequest(b"k", 5)], soon())
        assert late is not None
        with pytest.raises(LengthMismatch):
            await store.commit(late)
        assert_books_balance(store)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (PutRequest(b"k", 0), EmptyBlock),
        (PutRequest(b"k", 65 * MIB), BlockTooLarge),
        (PutRequest(b"", 1), BadRequest),
        (PutRequest(b"k", 3 * MIB), PinLimitExceeded),
    ],
)
async def test_what_can_never_be_stored_is_refused_at_once(request_: PutRequest, error: type[Exception]) -> None:
    async with opened(MEMORY) as store:
        with pytest.raises(error):
            await store.reserve(await kv(store), [request_], soon(60))
        assert_books_balance(store)


async def test_a_wrong_digest_aborts_and_stores_nothing() -> None:
    async with opened(MEMORY) as store:
        namespace = await kv(store)
        [reservation] = await store.reserve(namespace, [PutRequest(b"k", 4)], soon())
        assert reservation is not None
        with pytest.raises(DigestMismatch):
            await store.commit(reservation, digest=bytes(16))
        with pytest.raises(UnknownReservation):
            await store.commit(reservation)
        assert store.info(namespace, b"k") is None
        assert_books_balance(store)


async def test_the_pad_behind_a_block_holds_no_bytes_of_an_older_one() -> None:
    async with opened(MEMORY) as store:
        namespace = await kv(store)
        await put(store, namespace, b"secret", b"S" * (2 * MIB))
        await store.evict(namespace, [b"secret"])
        await put(store, namespace, b"small", b"x")
        [extent] = store.hold(namespace, [b"small"])
        assert extent is not None
        assert bytes(store.view(extent)) == b"x" + bytes(extent.length - 1)
        store.drop(extent)


async def test_staged_bytes_are_copied_and_checked_as_copied() -> None:
    async with opened(MEMORY) as store:
        namespace = await kv(store)
        staging = bytearray(b"staged bytes" * 1000)
        [reservation] = await store.reserve(namespace, [PutRequest(b"k", len(staging))], soon())
        assert reservation is not None
        await store.commit(reservation, source=memoryview(staging))
        staging[:6] = b"EVIL!!"
        stored = resident(store, namespace, b"k")
        assert stored is not None and stored.startswith(b"staged")
        assert store.checksum(namespace, b"k") == xxhash.xxh3_128_digest(stored)


async def test_a_batch_gets_all_its_bytes_or_none_and_nobody_overtakes() -> None:
    async with opened(MEMORY) as store:
        namespace = await kv(store, mode=WriteMode.MEMORY)
        for number in range(8):
            await put(store, namespace, b"fill%d" % number, bytes(512 * KIB))
        held = store.hold(namespace, [b"fill%d" % number for number in range(5)])
        big = asyncio.create_task(store.reserve(namespace, [PutRequest(b"big", 2 * MIB)], soon(30)))
        await asyncio.sleep(0)
        small = asyncio.create_task(store.reserve(namespace, [PutRequest(b"small", 4 * KIB)], soon(30)))
        await asyncio.sleep(0)
        assert not big.done() and not small.done(), "the small one waits its turn behind the big one"
        for extent in held:
            assert extent is not None
            store.drop(extent)
        for answer in (await big, await small):
            assert answer[0] is not None
            store.abort(answer[0])
        assert_books_balance(store)


async def test_a_full_arena_with_everything_leased_is_a_bounded_wait_and_then_busy() -> None:
    async with opened(MEMORY) as store:
        namespace = await kv(store, mode=WriteMode.MEMORY)
        keys = [b"k%d" % number for number in range(8)]
        for key in keys:
            await put(store, namespace, key, bytes(512 * KIB))
        held = store.hold(namespace, keys)
        with pytest.raises(Busy, match="leased"):
            await store.reserve(namespace, [PutRequest(b"more", 512 * KIB)], soon(0.05))
        for extent in held:
            assert extent is not None
            store.drop(extent)
        assert await put(store, namespace, b"more", bytes(512 * KIB)), "and there is room when they let go"
        assert_books_balance(store)


async def test_a_cancelled_reserve_leaves_nothing_behind() -> None:
    async with opened(MEMORY) as store:
        namespace = await kv(store, mode=WriteMode.MEMORY)
        keys = [b"k%d" % number for number in range(8)]
        for key in keys:
            await put(store, namespace, key, bytes(512 * KIB))
        held = store.hold(namespace, keys[:4])
        waiting = asyncio.create_task(
            store.reserve(namespace, [PutRequest(b"a", MIB), PutRequest(b"b", MIB)], soon(30))
        )
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        for extent in held:
            assert extent is not None
            store.drop(extent)
        await settled(store)
        assert_books_balance(store)


async def test_a_writer_that_dies_during_commit_publishes_nothing() -> None:
    async with opened(MEMORY) as store:
        namespace = await kv(store)
        [reservation] = await store.reserve(namespace, [PutRequest(b"k", MIB)], soon())
        assert reservation is not None
        commit = asyncio.create_task(store.commit(reservation))
        await asyncio.sleep(0)
        reservation.open = False  # what an abort during the checksum does, without giving the extent back yet
        with pytest.raises(UnknownReservation):
            await commit
        assert store.info(namespace, b"k") is None
        reservation.open = True
        store.abort(reservation)
        assert_books_balance(store)


async def test_a_deleted_block_stays_readable_for_its_holders_only() -> None:
    async with opened(MEMORY) as store:
        namespace = await kv(store)
        await put(store, namespace, b"k", b"payload")
        [held] = store.hold(namespace, [b"k"])
        assert held is not None
        assert await store.evict(namespace, [b"k", b"unknown"]) == 1
        assert store.hold(namespace, [b"k"]) == [None] and len(store.match(namespace, [b"k"])) == 0
        await put(store, namespace, b"other", b"another")
        assert content(store, held) == b"payload"
        store.drop(held)
        assert_books_balance(store)


async def test_match_gives_the_usable_prefix_and_ends_at_the_first_hole() -> None:
    async with opened(MEMORY) as store:
        namespace = await kv(store)
        for key in (b"a", b"b", b"d"):
            await put(store, namespace, key, bytes(1000))
        match = store.match(namespace, [b"a", b"b", b"c", b"d"])
        assert match.tiers == bytes([2, 2])
        assert 0 < match.seconds[0] < match.seconds[1]


async def test_a_namespace_of_another_family_is_refused_with_the_field_that_differs() -> None:
    async with opened(MEMORY) as store:
        await store.open_namespace(NamespaceSpec("ours", family={"dtype": "float32", "layers": "30"}))
        with pytest.raises(FamilyMismatch, match="dtype = float32; this worker's is bfloat16"):
            await store.open_namespace(NamespaceSpec("ours", family={"dtype": "bfloat16", "layers": "30"}))


async def test_durable_is_refused_where_nothing_can_be_durable() -> None:
    async with opened(MEMORY) as store:
        memory = await kv(store, "m", WriteMode.MEMORY)
        await put(store, memory, b"k", b"x")
        with pytest.raises(BadRequest, match="memory only"):
            await store.durable(memory, b"k", soon())
        with pytest.raises(TierDegraded, match=r"nvme\.path"):
            await store.durable(await kv(store), b"k", soon())


async def test_listing_goes_in_key_order_by_prefix_and_page() -> None:
    async with opened(MEMORY) as store:
        namespace = await bucket(store)
        for key in (b"b/2", b"a", b"b/1", b"c", b"b/3"):
            await put(store, namespace, key, b"x")
        pages = [info.key for info in store.list_blocks(namespace, b"b/", b"b/1", 10)]
        assert pages == [b"b/2", b"b/3"]
        await store.evict(namespace, [b"b/2"])
        assert [info.key for info in store.list_blocks(namespace, limit=3)] == [b"a", b"b/1", b"b/3"]


async def test_a_block_whose_depth_is_not_told_stands_one_below_its_parent() -> None:
    async with opened(MEMORY) as store:
        namespace = await kv(store)
        keys = [bytes([n]) * 16 for n in range(3)]
        wanted = [PutRequest(key, 4, parent) for key, parent in zip(keys, [b"", *keys], strict=False)]
        reservations = await store.reserve(namespace, wanted, soon())
        for reservation in reservations:
            assert reservation is not None
            await store.commit(reservation)
        assert [store.info(namespace, key).depth for key in keys] == [0, 1, 2]
