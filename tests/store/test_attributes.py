"""Attributes beside a payload, and publishing under a condition: both belong to the step that makes a block visible."""

import shutil
from pathlib import Path

import pytest
from store_driver import KIB, MIB, assert_books_balance, bucket, get, kv, opened, put, settled, soon, store_config

from mooncask.errors import BadRequest, MooncaskError, NotEvictable
from mooncask.tiers.block import BlockRecord
from mooncask.tiers.namespace import Namespace, parts_name
from mooncask.tiers.nvme.record import BODY_BYTES_MAX
from mooncask.tiers.requests import Condition, PutRequest
from mooncask.tiers.store import Store

MEMORY = store_config(None)


async def put_with(
    store: Store, namespace: Namespace, key: bytes, attributes: bytes, condition: Condition | None = None
) -> bool:
    [reservation] = await store.reserve(namespace, [PutRequest(key, 5 * KIB)], soon())
    assert reservation is not None
    store.view(reservation.extent)[: 5 * KIB] = key[:1] * 5 * KIB
    return await store.commit(reservation, attributes=attributes, condition=condition)


async def only_if_absent_took(store: Store, namespace: Namespace, key: bytes, attributes: bytes) -> bool:
    def absent(have: BlockRecord | None) -> None:
        if have is not None:
            raise NotEvictable("the test", 0)

    try:
        return await put_with(store, namespace, key, attributes, absent)
    except MooncaskError:
        return False


def attributes(store: Store, namespace: Namespace, key: bytes) -> bytes | None:
    info = store.info(namespace, key)
    return None if info is None else info.attributes


@pytest.mark.parametrize("lost", ["nothing", "index"])
async def test_attributes_and_the_time_of_making_survive_a_restart(tmp_path: Path, lost: str) -> None:
    config = store_config(tmp_path)
    async with opened(config) as store:
        namespace = await bucket(store)
        for number in range(20):
            await put_with(store, namespace, b"k%d" % number, b"attributes %d" % number)
        await put(store, namespace, b"bare", b"x")
        await settled(store)
        before = {key: store.info(namespace, key) for key in namespace.index}
    if lost == "index":
        shutil.rmtree(tmp_path / "index")
    async with opened(config) as store:
        namespace = await bucket(store)
        assert attributes(store, namespace, b"k7") == b"attributes 7"
        assert attributes(store, namespace, b"bare") == b""
        for key, info in before.items():
            now = store.info(namespace, key)
            assert info is not None and now is not None
            assert (now.attributes, now.created_seconds) == (info.attributes, info.created_seconds)
        assert len(store._catalogue.attributes) == 20, "a block without attributes takes no place for them"
        assert_books_balance(store)


async def test_attributes_survive_the_reclaimer(tmp_path: Path) -> None:
    config = store_config(tmp_path, dram_bytes=16 * MIB)
    async with opened(config) as store:
        namespace, filler = await bucket(store), await kv(store)
        await put_with(store, namespace, b"kept", b"attributes")
        for number in range(150):
            await put(store, filler, b"%016d" % number, bytes([number]) * MIB, durable=True, seconds=20)
        await settled(store)
        assert store.nvme is not None and store.nvme.reclaimed_segments > 0
    shutil.rmtree(tmp_path / "index")
    async with opened(config) as store:
        namespace = await bucket(store)
        assert attributes(store, namespace, b"kept") == b"attributes"
        assert await get(store, namespace, b"kept") == b"k" * 5 * KIB


async def test_attributes_that_fit_into_no_header_are_refused() -> None:
    async with opened(MEMORY) as store:
        namespace = await bucket(store)
        assert await put_with(store, namespace, b"key", bytes(BODY_BYTES_MAX - 3))
        with pytest.raises(BadRequest, match="attributes"):
            await put_with(store, namespace, b"key", bytes(BODY_BYTES_MAX - 2))
        assert_books_balance(store)


async def test_a_condition_is_asked_at_the_moment_of_publishing() -> None:
    async with opened(MEMORY) as store:
        namespace = await bucket(store)
        [first, second] = [await store.reserve(namespace, [PutRequest(b"k", 1)], soon()) for _ in range(2)]
        seen: list[bytes | None] = []

        def look(have: BlockRecord | None) -> None:
            seen.append(None if have is None else have.attributes)

        for [reservation], text in ((first, b"one"), (second, b"two")):
            assert reservation is not None
            await store.commit(reservation, attributes=text, condition=look)
        assert seen == [None, b"one"]


async def test_what_a_condition_refuses_changes_nothing() -> None:
    async with opened(MEMORY) as store:
        namespace = await bucket(store)
        assert await only_if_absent_took(store, namespace, b"k", b"first")
        assert not await only_if_absent_took(store, namespace, b"k", b"second")
        assert attributes(store, namespace, b"k") == b"first"
        assert_books_balance(store)


async def test_the_attributes_of_a_block_that_leaves_are_told_in_whatever_way_it_leaves() -> None:
    async with opened(MEMORY) as store:
        namespace = await bucket(store)
        gone: list[tuple[bytes, bytes]] = []
        store.watch_attributes(lambda owner, key, text: gone.append((key, text)))
        for text in (b"one", b"two"):
            await put_with(store, namespace, b"k", text)
        await store.evict(namespace, [b"k"])
        await put_with(store, namespace, b"t", b"expires")
        await store.set_ttl(namespace, b"t", -1.0)
        store._housekeeping.sweep(1e12)
        await put(store, namespace, b"bare", b"x")
        await store.evict(namespace, [b"bare"])
        assert gone == [(b"k", b"one"), (b"k", b"two"), (b"t", b"expires")]


async def test_no_user_can_name_the_hidden_namespace_of_a_bucket() -> None:
    assert "/" in parts_name("photos"), "check_name of daemon/namespace_door.py allows no slash"
