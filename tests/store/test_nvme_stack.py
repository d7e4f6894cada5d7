"""The store over its NVMe tier: loading, restarting, deleting, and wrong bytes."""

import asyncio
from pathlib import Path

import pytest
from store_driver import (
    KIB,
    assert_books_balance,
    bucket,
    get,
    kv,
    opened,
    put,
    resident,
    settled,
    soon,
    store_config,
)

from mooncask.tiers.block import WriteMode
from mooncask.tiers.requests import PutRequest
from mooncask.tiers.store import Store

SIZE = 100 * KIB


def payload(number: int) -> bytes:
    return number.to_bytes(4, "big") * (SIZE // 4)


def drop_from_dram(store: Store, key: bytes, name: str = "kv-test") -> None:
    namespace = store.namespace(name)
    assert namespace is not None
    store._parts.copies.drop_dram(namespace.index[key])


async def test_many_readers_of_one_missing_block_cause_one_read(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store)
        await put(store, namespace, b"k", payload(1), durable=True)
        drop_from_dram(store, b"k")
        extents = await asyncio.gather(*(store.fetch(namespace, b"k", soon()) for _ in range(50)))
        assert store.counters["nvme_read_bytes"] == SIZE
        assert len({extent.offset for extent in extents if extent}) == 1 and all(extents)
        for extent in extents:
            assert extent is not None
            store.drop(extent)
        assert_books_balance(store)


async def test_a_reader_that_gives_up_leaves_no_reference(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store)
        await put(store, namespace, b"k", payload(1), durable=True)
        drop_from_dram(store, b"k")
        impatient = asyncio.create_task(store.fetch(namespace, b"k", soon()))
        patient = asyncio.create_task(store.fetch(namespace, b"k", soon()))
        await asyncio.sleep(0)
        impatient.cancel()
        extent = await patient
        assert extent is not None
        store.drop(extent)
        drop = asyncio.create_task(store.fetch(namespace, b"k", soon(0)))
        assert await drop is None or store.drop(drop.result()) is None  # type: ignore[arg-type]  # in time by chance
        assert store._parts.bring_up is not None
        await store._parts.bring_up.drained()
        assert_books_balance(store)


async def test_durable_blocks_are_there_after_a_restart_and_deleted_ones_are_not(tmp_path: Path) -> None:
    config = store_config(tmp_path)
    async with opened(config) as store:
        namespace = await kv(store)
        for number in range(20):
            await put(store, namespace, b"%02d" % number, payload(number), parent=b"%02d" % (number - 1), durable=True)
        await store.evict(namespace, [b"07"])
        await store.pin(namespace, b"03")
        await store.set_ttl(namespace, b"04", 3600)
    async with opened(config) as store:
        namespace = store.namespaces()[0]
        assert namespace.spec.name == "kv-test" and namespace.blocks == 19
        for number in range(20):
            assert await get(store, namespace, b"%02d" % number) == (None if number == 7 else payload(number))
        pinned, timed = store.info(namespace, b"03"), store.info(namespace, b"04")
        assert pinned is not None and pinned.pins == 1 and pinned.parent == b"02"
        assert timed is not None and 3500 < timed.ttl_seconds <= 3600
        await put(store, namespace, b"07", payload(70), durable=True)
        assert await get(store, namespace, b"07") == payload(70)
    async with opened(config) as store:
        assert await get(store, store.namespaces()[0], b"07") == payload(70)


async def test_write_back_blocks_are_flushed_at_an_orderly_end(tmp_path: Path) -> None:
    config = store_config(tmp_path)
    async with opened(config) as store:
        namespace = await kv(store, mode=WriteMode.WRITE_BACK)
        await put(store, namespace, b"k", payload(5))
    async with opened(config) as store:
        assert await get(store, store.namespaces()[0], b"k") == payload(5)


async def test_an_object_that_is_replaced_again_and_again_is_its_last_version_after_a_restart(tmp_path: Path) -> None:
    config = store_config(tmp_path)
    async with opened(config) as store:
        namespace = await bucket(store)
        for number in range(30):
            await put(store, namespace, b"name", payload(number), durable=number % 3 == 0)
        await put(store, namespace, b"gone", payload(1))
        await store.evict(namespace, [b"gone"])
        await settled(store)
        assert store.nvme is not None and store.nvme.used_bytes < 4 * SIZE, "older versions are dead"
    async with opened(config) as store:
        namespace = store.namespaces()[0]
        assert await get(store, namespace, b"name") == payload(29)
        assert await get(store, namespace, b"gone") is None


async def test_a_delete_overtakes_no_write_under_way(tmp_path: Path) -> None:
    config = store_config(tmp_path)
    async with opened(config) as store:
        namespace = await kv(store)
        for round_ in range(10):
            await put(store, namespace, b"k", payload(round_))
            await store.evict(namespace, [b"k"])
        await put(store, namespace, b"again", payload(1))
        delete = asyncio.create_task(store.evict(namespace, [b"again"]))
        await asyncio.sleep(0)
        await put(store, namespace, b"again", payload(2), durable=True)
        await delete
    async with opened(config) as store:
        namespace = store.namespaces()[0]
        assert await get(store, namespace, b"k") is None
        assert await get(store, namespace, b"again") == payload(2)


async def test_wrong_bytes_on_nvme_are_a_miss_and_the_key_is_free_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store)
        await put(store, namespace, b"k" * 16, payload(1), durable=True)
        drop_from_dram(store, b"k" * 16)
        flip_payload_on_disk(tmp_path, payload(1)[:4096])
        assert await get(store, namespace, b"k" * 16) is None
        assert store.counters["quarantined"] == 1 and "quarantined" in caplog.text
        assert await put(store, namespace, b"k" * 16, payload(2), durable=True)
        assert await get(store, namespace, b"k" * 16) == payload(2)


async def test_wrong_bytes_in_dram_are_found_by_verify_and_stay_with_their_holder(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened(store_config(None)) as store:
        namespace = await kv(store)
        await put(store, namespace, b"k", payload(1))
        assert await store.verify(namespace, b"k")
        [held] = store.hold(namespace, [b"k"])
        assert held is not None
        store.view(held)[5] ^= 1
        assert not await store.verify(namespace, b"k")
        assert resident(store, namespace, b"k") is None
        await put(store, namespace, b"k", payload(2))
        assert bytes(store.view(held)[:5]) == payload(1)[:5], "the extent is out of use until its lease ends"
        store.drop(held)
        assert_books_balance(store)


async def test_blocks_vanish_when_their_time_is_up(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store)
        await put(store, namespace, b"k", payload(1), durable=True)
        await store.set_ttl(namespace, b"k", -1)
        assert len(store.match(namespace, [b"k"])) == 0 and await get(store, namespace, b"k") is None
        [again] = await store.reserve(namespace, [PutRequest(b"k", 10)], soon())
        assert again is not None, "the key is free for another block"
        assert await store.commit(again)
        assert store._housekeeping.sweep(0.0) == 0


async def test_the_scrub_finds_what_nobody_reads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(store_config(tmp_path, scrub_bytes_per_second=1e9)) as store:
        namespace = await kv(store)
        await put(store, namespace, b"good", payload(2), durable=True)
        await put(store, namespace, b"bad", payload(1), durable=True)
        drop_from_dram(store, b"bad")
        flip_payload_on_disk(tmp_path, payload(1)[:4096])
        await store._housekeeping.scrub_once()
        assert store.info(namespace, b"bad") is None and store.info(namespace, b"good") is not None
        assert store.counters["quarantined"] == 1


def flip_payload_on_disk(folder: Path, needle: bytes) -> None:
    """Flips a bit of the block whose payload begins with `needle`, behind everybody's back."""
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        place = path.read_bytes().find(needle)
        if place >= 0:
            with path.open("r+b") as file:
                file.seek(place + 100)
                byte = file.read(1)[0]
                file.seek(place + 100)
                file.write(bytes([byte ^ 0x10]))
            return
    raise AssertionError("the block is not on disk")
