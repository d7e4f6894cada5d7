"""Every way out of the store is noted with its reason and tier, and bytes are counted by the way they went."""

import time
from pathlib import Path

from child_processes import until
from store_driver import KIB, bucket, get, kv, opened, put, soon, store_config

from mooncask.errors import CorruptBlock
from mooncask.tiers.block import TierName, WriteMode
from mooncask.tiers.departures import Departures
from mooncask.tiers.flows import DEMOTE, EVICT_DRAM, LOAD, PROMOTE_DRAM, PUT, WRITE
from mooncask.tiers.store import Store

BLOCK = 256 * KIB
FITS = 16


def payload(number: int) -> bytes:
    return number.to_bytes(4, "big") * (BLOCK // 4)


def reasons(store: Store) -> list[tuple[bytes, str, str]]:
    """(key, reason, tier) of what left since the last call."""
    return [(one.key, one.reason, TierName(one.tier).name.lower()) for one in store.departures.take(1000)]


async def test_deleting_and_running_out_are_told_with_time_and_tier(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store)
        before = time.time()
        for key in (b"deleted", b"expired"):
            await put(store, namespace, key, payload(1), durable=True)
        await store.evict(namespace, [b"deleted", b"never was"])
        await store.set_ttl(namespace, b"expired", 0.001)
        await until(lambda: len(store.departures) == 2)
        left = store.departures.take(10)
        assert [(one.key, one.reason, one.tier, one.size) for one in left] == [
            (b"deleted", "deleted", TierName.DRAM, BLOCK),
            (b"expired", "expired", TierName.DRAM, BLOCK),
        ]
        assert all(before <= one.seconds <= time.time() for one in left)


async def test_quarantine_replacing_and_withdrawing_are_told_apart() -> None:
    async with opened(store_config(None)) as store:
        namespace, objects = await kv(store, mode=WriteMode.MEMORY), await bucket(store, mode=WriteMode.MEMORY)
        for key in (b"wrong", b"unwritable"):
            await put(store, namespace, key, payload(1))
        store.quarantine(namespace.index[b"wrong"], CorruptBlock("wrong", "dram", "a test's flipped bit"))
        assert store.withdraw(namespace, b"unwritable")
        for body in (b"old", b"newer"):
            await put(store, objects, b"a", body)
        assert reasons(store) == [
            (b"wrong", "quarantined", "dram"),
            (b"unwritable", "withdrawn", "dram"),
            (b"a", "replaced", "dram"),
        ]


async def test_what_memory_forgets_is_evicted_and_counted_in_bytes() -> None:
    async with opened(store_config(None)) as store:
        namespace = await kv(store, mode=WriteMode.MEMORY)
        for number in range(FITS + 2):
            await put(store, namespace, b"%02d" % number, payload(number))
        assert reasons(store) == [(b"00", "evicted", "dram"), (b"01", "evicted", "dram")]
        assert store.flows.bytes[PUT] == (FITS + 2) * BLOCK
        assert (store.flows.blocks[EVICT_DRAM], store.flows.bytes[EVICT_DRAM]) == (2, 2 * BLOCK)


async def test_bytes_that_move_between_tiers_are_no_departures(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store, mode=WriteMode.WRITE_BACK)
        for number in range(FITS + 2):
            await put(store, namespace, b"%02d" % number, payload(number))
        gone = [key for key in namespace.index if namespace.index[key] not in store.catalogue.dram]
        assert gone and reasons(store) == []
        for _ in range(2):
            assert await get(store, namespace, gone[0]) == payload(int(gone[0]))
        flows = store.flows.blocks
        assert flows[DEMOTE] >= 2 and flows[WRITE] >= 2
        assert (flows[LOAD], flows[PROMOTE_DRAM]) == (2, 1), "the second read earns it a place"
        await store.durable(namespace, gone[0], soon())


def test_departures_that_nobody_takes_are_bounded() -> None:
    log = Departures(most=3)
    for number in range(5):
        log.note(float(number), 1, b"k%d" % number, TierName.DRAM, "evicted", 1)
    assert (len(log), log.noted) == (3, 5)
    assert [one.key for one in log.take(2)] == [b"k2", b"k3"]
    assert [one.key for one in log.take(2)] == [b"k4"]
