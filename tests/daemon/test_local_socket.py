"""The socket's protocol against a real store: frames in, frames out, bytes in shared memory."""

import asyncio

import msgspec
import pytest
from local_daemon import running_daemon
from raw_client import key, payload
from xxhash import xxh3_128_digest

from mooncask.client import wire
from mooncask.client.hashing import root
from mooncask.errors import (
    BadRequest,
    Busy,
    UnknownLease,
    UnknownReservation,
)

BLOCKS = {key(i): payload(i) for i in range(8)}


async def test_what_was_put_is_read_in_place() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        assert await client.put(namespace, BLOCKS) == [wire.CommitState.PUBLISHED] * 8
        got = await client.acquire(namespace, list(BLOCKS))
        assert [got.payloads[i] for i in range(8)] == list(BLOCKS.values())
        assert got.frames == 1
        await client.close()


async def test_hits_are_answered_without_a_task() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        await client.put(namespace, BLOCKS)
        before = asyncio.all_tasks()
        (connection,) = daemon.local._connections
        connection.data_received(wire.frame(msgspec.msgpack.Encoder(), wire.Acquire(99, namespace, list(BLOCKS), 1000)))
        assert asyncio.all_tasks() == before
        assert len(daemon.plane.leases) == 8, "the leases were granted before data_received returned"
        await client.close()


async def test_a_lease_is_released_once_and_only_with_its_generation() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        await client.put(namespace, BLOCKS)
        leases, generations = (await client.acquire(namespace, list(BLOCKS))).ids
        wrong = [generations[0] + 1, *generations[1:]]
        assert isinstance(await client.refused(wire.Release, leases, wrong), UnknownLease)
        assert len(daemon.plane.leases) == 8, "a refused release ends nothing"
        assert (await client.ask(wire.Done, wire.Release, leases, generations)).count == 8
        assert isinstance(await client.refused(wire.Release, leases, generations), UnknownLease)
        assert daemon.store.status().tiers[0].leased_bytes == 0
        await client.close()


async def test_a_release_without_reply_ends_what_is_held_and_counts_the_rest() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        await client.put(namespace, BLOCKS)
        leases, generations = (await client.acquire(namespace, list(BLOCKS))).ids
        quiet = wire.Release(0, [*leases, 12345], [*generations, 1])
        client.send_raw(wire.frame(msgspec.msgpack.Encoder(), quiet))
        status = await client.ask(wire.Status, wire.Stat)
        assert status.counters["releases_unknown"] == 1
        assert len(daemon.plane.leases) == 0
        await client.close()


async def test_misses_are_answered_at_once_and_named() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        await client.put(namespace, {key(1): payload(1)})
        got = await client.acquire(namespace, [key(0), key(1), key(2)], 60_000)
        assert got.missed == {0, 2} and got.payloads == {1: payload(1)}
        await client.close()


async def test_what_lies_on_nvme_arrives_and_says_from_where(tmp_path) -> None:  # type: ignore[no-untyped-def]
    async with running_daemon({"nvme.path": str(tmp_path / "n"), "dram.capacity": "4MiB"}) as daemon:
        client = await daemon.client()
        namespace = await client.open()
        blocks = {key(i): payload(i, 1 << 20) for i in range(6)}
        for name, body in blocks.items():
            assert await client.put(namespace, {name: body}, durable=True) == [wire.CommitState.DURABLE]
        for i, (name, body) in enumerate(blocks.items()):
            got = await client.acquire(namespace, [name], 5000)
            assert got.payloads == {0: body}, i
            await client.ask(wire.Done, wire.Release, *got.ids)
        assert daemon.service.counters["acquire_loaded_blocks"] > 0
        await client.close()


async def test_match_gives_the_usable_prefix_and_counts_tokens() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        await client.put(namespace, {key(0): payload(0), key(1): payload(1), key(3): payload(3)})
        matched = await client.ask(wire.Matched, wire.Match, namespace, [key(0), key(1), key(2), key(3)])
        assert matched.tiers == bytes([2, 2]) and len(matched.seconds) == 2
        assert daemon.service.tokens == {("kv-test", "requested"): 64, ("kv-test", "hit"): 32}
        await client.close()


async def test_opening_answers_the_root_of_the_tenants_chains() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        opened = await client.ask(wire.Opened, wire.Open, "", family={"model": "m"})
        assert opened.name.startswith("kv-") and len(opened.name) == 19
        assert opened.root == root(opened.fingerprint, opened.salt)
        again = await client.ask(wire.Opened, wire.Open, "", family={"model": "m"})
        assert again == msgspec.structs.replace(opened, id=again.id)
        await client.close()


# --- writing -----------------------------------------------------------------------------------------------------------


async def test_a_second_put_of_a_key_needs_no_place() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        await client.put(namespace, {key(1): payload(1)})
        reserved = await client.reserve(namespace, {key(1): payload(2), key(2): payload(2)})
        assert reserved.reservations[0] == 0 and reserved.reservations[1] != 0
        await client.close()


async def test_of_two_open_reservations_the_first_commit_wins() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        first = await client.reserve(namespace, {key(1): payload(1)})
        second = await client.reserve(namespace, {key(1): payload(2)})
        states = []
        for reserved in (second, first):
            committed = await client.ask(wire.Committed, wire.Commit, reserved.reservations, reserved.generations, 1000)
            states.append(wire.CommitState(committed.states[0]))
        assert states == [wire.CommitState.PUBLISHED, wire.CommitState.HAVE_IT]
        assert (await client.acquire(namespace, [key(1)])).payloads == {0: payload(2)}
        await client.close()


async def test_a_second_commit_is_an_unknown_reservation() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        reserved = await client.reserve(namespace, {key(1): payload(1)})
        names = (reserved.reservations, reserved.generations)
        first, second = client.send(wire.Commit, *names, 1000), client.send(wire.Commit, *names, 1000)
        assert (await client.reply(first, wire.Committed)).states == bytes([wire.CommitState.PUBLISHED])
        with pytest.raises(UnknownReservation):
            await client.reply(second, wire.Committed)
        await client.close()


async def test_a_commit_names_id_and_generation() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        reserved = await client.reserve(namespace, {key(1): payload(1)})
        wrong = [reserved.generations[0] + 1]
        assert isinstance(await client.refused(wire.Commit, reserved.reservations, wrong, 1000), UnknownReservation)
        committed = await client.ask(wire.Committed, wire.Commit, reserved.reservations, reserved.generations, 1000)
        assert committed.states == bytes([wire.CommitState.PUBLISHED]), "the refused one changed nothing"
        await client.close()


async def test_a_wrong_digest_fails_its_block_and_no_other() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        reserved = await client.reserve(namespace, {key(1): payload(1), key(2): payload(2)})
        digests = [xxh3_128_digest(payload(1)), xxh3_128_digest(payload(1))]
        committed = await client.ask(
            wire.Committed, wire.Commit, reserved.reservations, reserved.generations, 1000, digests
        )
        assert committed.states == bytes([wire.CommitState.PUBLISHED, wire.CommitState.FAILED])
        (failure,) = committed.failures
        assert (failure.index, failure.error) == (1, "DigestMismatch")
        assert (await client.acquire(namespace, [key(1), key(2)])).missed == {1}
        await client.close()


async def test_an_aborted_reservation_leaves_nothing() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        reserved = await client.reserve(namespace, BLOCKS)
        assert (await client.ask(wire.Done, wire.Abort, reserved.reservations, reserved.generations)).count == 8
        assert daemon.store.status().tiers[0].used_bytes == 0
        assert (await client.acquire(namespace, list(BLOCKS))).missed == set(range(8))
        await client.close()


async def test_durable_in_memory_is_refused_and_the_reservation_stays_open() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open(mode="memory")
        reserved = await client.reserve(namespace, {key(1): payload(1)})
        names = (reserved.reservations, reserved.generations)
        assert isinstance(await client.refused(wire.Commit, *names, 1000, durable=True), BadRequest)
        assert (await client.ask(wire.Committed, wire.Commit, *names, 1000)).states == bytes([1])
        await client.close()


async def test_a_full_arena_with_everything_leased_answers_busy_by_the_deadline() -> None:
    async with running_daemon({"dram.capacity": "4MiB"}) as daemon:
        client = await daemon.client()
        namespace = await client.open()
        blocks = {key(i): payload(i, 1 << 20) for i in range(2)}
        await client.put(namespace, blocks)
        got = await client.acquire(namespace, list(blocks))
        loop = asyncio.get_running_loop()
        started = loop.time()
        refused = await client.refused(wire.Reserve, namespace, [key(9)], [1 << 20], 200)
        assert isinstance(refused, Busy) and 0.15 < loop.time() - started < 2.0
        waiting = client.send(wire.Reserve, namespace, [key(9)], [1 << 20], 5000)
        await client.ask(wire.Done, wire.Release, *got.ids)
        assert (await client.reply(waiting, wire.Reserved)).reservations[0], "the place came with the release"
        await client.close()


# --- untrusted writers ---------------------------------------------------------------------------------------------------


async def test_an_untrusted_writer_stages_and_never_maps_the_arena_writable() -> None:
    async with running_daemon({"socket.trusted_writers": [], "socket.staging": "1MiB"}) as daemon:
        client = await daemon.client()
        assert client.welcome.descriptors == ["arena", "staging"]
        namespace = await client.open()
        await client.put(namespace, BLOCKS)
        got = await client.acquire(namespace, list(BLOCKS))
        assert [got.payloads[i] for i in range(8)] == list(BLOCKS.values())
        client.maps["staging"][:] = b"\xff" * (1 << 20)
        assert (await client.acquire(namespace, list(BLOCKS))).payloads == got.payloads
        await client.close()


async def test_staging_that_is_full_waits_for_a_commit() -> None:
    async with running_daemon({"socket.trusted_writers": [], "socket.staging": "64KiB"}) as daemon:
        client = await daemon.client()
        namespace = await client.open()
        first = await client.reserve(namespace, {key(1): payload(1, 40 << 10)})
        assert isinstance(await client.refused(wire.Reserve, namespace, [key(2)], [40 << 10], 50), Busy)
        assert isinstance(await client.refused(wire.Reserve, namespace, [key(2)], [80 << 10], 50), BadRequest)
        waiting = client.send(wire.Reserve, namespace, [key(2)], [40 << 10], 5000)
        await client.ask(wire.Committed, wire.Commit, first.reservations, first.generations, 1000)
        assert (await client.reply(waiting, wire.Reserved)).reservations[0]
        await client.close()


# --- control ---------------------------------------------------------------------------------------------------------------


async def test_pins_ttl_stat_list_and_evict() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        await client.put(namespace, BLOCKS)
        keys = [*BLOCKS, key(99)]
        assert (await client.ask(wire.Done, wire.Pin, namespace, keys)).count == 8
        assert (await client.ask(wire.Done, wire.SetTtl, namespace, keys, 60_000)).count == 8
        blocks = (await client.ask(wire.Blocks, wire.Stat, namespace, keys)).blocks
        assert blocks[8] is None and all(block and block.pins == 1 and block.ttl_seconds > 0 for block in blocks[:8])
        assert (await client.ask(wire.Done, wire.Unpin, namespace, keys)).count == 8
        page = await client.ask(wire.Blocks, wire.ListBlocks, namespace, limit=3)
        assert [block.key for block in page.blocks if block] == [key(0), key(1), key(2)] and page.more
        rest = await client.ask(wire.Blocks, wire.ListBlocks, namespace, after=key(2), limit=100)
        assert len(rest.blocks) == 5 and not rest.more
        assert (await client.ask(wire.Done, wire.Evict, namespace, keys)).count == 8
        await client.close()


async def test_an_evicted_block_stays_readable_for_who_holds_it() -> None:
    async with running_daemon({"dram.capacity": "4MiB"}) as daemon:
        client = await daemon.client()
        namespace = await client.open()
        await client.put(namespace, {key(1): payload(1, 1 << 20)})
        got = await client.acquire(namespace, [key(1)])
        await client.ask(wire.Done, wire.Evict, namespace, [key(1)])
        await client.put(namespace, {key(2): payload(2, 1 << 20)})
        place = got.places[0]
        assert client.maps["arena"][place : place + (1 << 20)] == payload(1, 1 << 20)
        await client.close()


async def test_verify_quarantines_a_wrong_block_and_verifying_readers_get_a_miss() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open(mode="memory")
        await client.put(namespace, BLOCKS)
        place = (await client.acquire(namespace, [key(3)])).places[0]
        client.writing[place] ^= 1
        got = await client.acquire(namespace, list(BLOCKS), verify=True)
        assert got.missed == {3} and len(got.payloads) == 7
        client.writing[(await client.acquire(namespace, [key(4)])).places[0]] ^= 1
        checked = (await client.ask(wire.Blocks, wire.Verify, namespace, list(BLOCKS), 5000)).blocks
        assert [block is None for block in checked] == [False, False, False, True, True, False, False, False]
        assert daemon.store.counters["quarantined"] == 2
        await client.close()
