"""What becomes of leases and reservations when connections are cut and processes die."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from child_processes import until, worker
from local_daemon import LocalDaemon, running_daemon
from raw_client import RawClient, key, payload

from mooncask.client import wire
from mooncask.errors import AccessDenied, BadRequest, UnknownLease, UnknownReservation

NOBODY = 65534
BLOCKS = {key(i): payload(i) for i in range(4)}


def dram(daemon: LocalDaemon) -> tuple[int, int]:
    """(leased, reserved) bytes."""
    tier = daemon.store.status().tiers[0]
    return tier.leased_bytes, tier.reserved_bytes


async def test_a_killed_worker_leaves_no_lease() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        await client.put(await client.open(), BLOCKS)
        async with worker(daemon.path, "acquire", "kv-test", 0, 1, 2, 3) as child:
            assert dram(daemon)[0] > 0
            await child.kill()
            await until(lambda: dram(daemon) == (0, 0))
        assert daemon.plane.counters["processes_died"] == 1
        assert len(daemon.plane.processes) == 1
        await client.close()


async def test_a_killed_worker_leaves_no_reservation_and_nobody_sees_its_bytes() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        async with worker(daemon.path, "reserve", "kv-test", 0, 1) as child:
            assert dram(daemon)[1] > 0
            waiting = asyncio.create_task(client.acquire(namespace, [key(0), key(1)], 60_000, wait=True))
            await until(lambda: daemon.service.arrivals.waiting == 2)
            await child.kill()
            assert (await waiting).missed == {0, 1}
        assert dram(daemon) == (0, 0) and daemon.store.status().tiers[0].used_bytes == 0
        await client.close()


async def test_a_dead_process_promises_nothing() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        async with worker(daemon.path, "expect", "kv-test", 5) as child:
            waiting = asyncio.create_task(client.acquire(namespace, [key(5)], 60_000, wait=True))
            await until(lambda: daemon.service.arrivals.waiting == 1)
            await child.kill()
            assert (await waiting).missed == {0}
        await client.close()


async def test_a_commit_that_was_sent_counts_even_if_its_writer_is_gone() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        async with worker(daemon.path, "commit_and_leave", "kv-test", 7):
            await until(lambda: daemon.store.counters["published"] == 1)
        assert (await client.acquire(namespace, [key(7)])).payloads == {0: payload(7)}
        await client.close()


async def test_a_process_in_another_pid_namespace_gets_no_memory() -> None:
    """Nothing would tell of its death, so nothing of the arena is given to it."""
    if not can_unshare():
        pytest.skip("needs the right to make a pid namespace (root)")
    async with running_daemon() as daemon:
        async with worker(
            daemon.path, "look", "kv-test", 1, under=("unshare", "--pid", "--fork", "--kill-child")
        ) as child:
            assert child.said == {"descriptors": [], "refused": "AccessDenied"}
            assert dram(daemon) == (0, 0)
        await until(lambda: len(daemon.plane.processes) == 0)


async def test_another_uid_stages_and_sees_its_own_tenants_namespaces_only() -> None:
    if os.getuid() != 0:
        pytest.skip("needs root, to become another user")
    settings = {"socket.mode": "0666", "tenants.other.uids": [NOBODY]}
    async with running_daemon(settings) as daemon:
        Path(daemon.path).parent.chmod(0o755)
        client = await daemon.client()
        await client.put(await client.open("kv-mine"), BLOCKS)
        async with worker(daemon.path, "put", "kv-theirs", 1, 2, uid=NOBODY) as child:
            assert child.said == {"right": True}
        async with worker(daemon.path, "acquire", "kv-mine", 1, uid=NOBODY) as child:
            assert child.said == {"refused": "AccessDenied"}
        theirs = daemon.store.namespace("kv-theirs")
        assert theirs is not None and theirs.spec.tenant == "other"
        assert isinstance(await client.refused(wire.Open, "kv-theirs"), AccessDenied)
        await client.close()


def can_unshare() -> bool:
    return os.getuid() == 0 and subprocess.run(["unshare", "--pid", "--fork", "true"], check=False).returncode == 0


# --- cut connections of living processes -----------------------------------------------------------------------------


async def test_leases_outlive_their_connection_until_the_process_reconnects() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        await client.put(namespace, BLOCKS)
        leases, generations = (await client.acquire(namespace, list(BLOCKS))).ids
        held = dram(daemon)[0]
        await client.close()
        await until(lambda: not any(process.sessions for process in daemon.plane.processes))
        assert dram(daemon)[0] == held, "its process lives and may still read"
        again = await daemon.client(client.token, resume=leases[:2])
        assert again.welcome.resumed == leases[:2]
        assert dram(daemon)[0] == held // 2, "what the reconnect did not name is free"
        assert (await again.ask(wire.Done, wire.Release, leases[:2], generations[:2])).count == 2
        assert isinstance(await again.refused(wire.Release, leases[2:], generations[2:]), UnknownLease)
        await again.close()


async def test_a_second_connection_leaves_the_leases_of_the_first_alone() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        await client.put(namespace, BLOCKS)
        leases, generations = (await client.acquire(namespace, list(BLOCKS))).ids
        second = await daemon.client(client.token)
        assert second.welcome.resumed == []
        assert (await second.ask(wire.Done, wire.Release, leases, generations)).count == 4, (
            "a process's lease is a process's"
        )
        await client.close()
        await second.close()


async def test_a_cut_writers_place_is_parked_until_its_process_is_back() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        reserved = await client.reserve(namespace, BLOCKS)
        names = (reserved.reservations, reserved.generations)
        held = dram(daemon)[1]
        await client.close()
        await until(lambda: not any(process.sessions for process in daemon.plane.processes))
        assert dram(daemon)[1] == held, "it may be writing there at this moment"
        kept = reserved.reservations[:1]
        again = await daemon.client(client.token, resume=kept)
        assert dram(daemon)[1] == held // 4, "the places that it does not name are free"
        assert isinstance(await again.refused(wire.Commit, *names, 1000), UnknownReservation)
        assert (await again.ask(wire.Done, wire.Abort, kept, reserved.generations[:1])).count == 1
        assert dram(daemon)[1] == 0
        await again.close()


async def test_a_staged_writers_place_is_free_as_soon_as_it_is_cut() -> None:
    async with running_daemon({"socket.trusted_writers": []}) as daemon:
        client = await daemon.client()
        await client.reserve(await client.open(), BLOCKS)
        assert dram(daemon)[1] > 0
        await client.close()
        await until(lambda: dram(daemon) == (0, 0))


async def test_waiters_do_not_wait_for_a_writer_that_was_cut() -> None:
    async with running_daemon() as daemon:
        writer, reader = await daemon.client(), await daemon.client()
        namespace = await writer.open()
        await reader.open()
        await writer.reserve(namespace, {key(1): payload(1)})
        waiting = asyncio.create_task(reader.acquire(namespace, [key(1)], 60_000, wait=True))
        await until(lambda: daemon.service.arrivals.waiting == 1)
        await writer.close()
        assert (await waiting).missed == {0}
        await reader.close()


async def test_who_keeps_a_lease_too_long_is_cut_and_its_bytes_stay_out_of_use() -> None:
    async with running_daemon({"limits.lease_max": "100ms"}) as daemon:
        client = await daemon.client()
        namespace = await client.open()
        await client.put(namespace, BLOCKS)
        leases, generations = (await client.acquire(namespace, list(BLOCKS))).ids
        held = dram(daemon)[0]
        await client.closed_by_daemon()
        await client.close()
        again = await daemon.client(client.token, resume=leases[:2])
        assert again.welcome.resumed == [], "an overstayed lease does not start anew"
        assert dram(daemon)[0] == held // 2, "those that it still names stay parked, the others are free"
        assert daemon.plane.leases.parked_bytes() == held // 2
        assert daemon.plane.counters["connections_overstayed"] == 1
        assert (await again.ask(wire.Done, wire.Release, leases[:2], generations[:2])).count == 2
        assert dram(daemon)[0] == 0
        await again.close()


async def test_a_process_that_holds_nothing_is_forgotten() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        await client.put(namespace, BLOCKS)
        got = await client.acquire(namespace, list(BLOCKS))
        await client.ask(wire.Done, wire.Release, *got.ids)
        assert len(daemon.plane.processes) == 1
        await client.close()
        await until(lambda: len(daemon.plane.processes) == 0)


# --- handing leases on ---------------------------------------------------------------------------------------------------


async def test_a_token_moves_leases_to_another_process_once() -> None:
    async with running_daemon() as daemon:
        scheduler, reader = await daemon.client(), await daemon.client()
        namespace = await scheduler.open()
        await scheduler.put(namespace, BLOCKS)
        got = await scheduler.acquire(namespace, list(BLOCKS), want_token=True)
        adopted = await reader.ask(wire.Adopted, wire.Adopt, got.token)
        assert sorted(adopted.keys) == sorted(BLOCKS)
        assert adopted.offsets == [got.places[i] for i in range(4)]
        assert isinstance(await scheduler.refused(wire.Release, *got.ids), UnknownLease)
        assert isinstance(await reader.refused(wire.Adopt, got.token), BadRequest)
        assert (await reader.ask(wire.Done, wire.Release, adopted.leases, adopted.generations)).count == 4
        await scheduler.close()
        await reader.close()


async def test_another_tenant_cannot_adopt_and_does_not_spoil_the_token() -> None:
    async with running_daemon() as daemon:
        scheduler, reader = await daemon.client(), await daemon.client()
        namespace = await scheduler.open()
        await scheduler.put(namespace, BLOCKS)
        got = await scheduler.acquire(namespace, list(BLOCKS), want_token=True)
        process = next(process for process in daemon.plane.processes if process.token == reader.token)
        process.tenant = "other"
        assert isinstance(await reader.refused(wire.Adopt, got.token), AccessDenied)
        process.tenant = "default"
        assert len((await reader.ask(wire.Adopted, wire.Adopt, got.token)).leases) == 4
        await scheduler.close()
        await reader.close()


# --- waiting ---------------------------------------------------------------------------------------------------------------


async def test_who_waits_gets_the_block_when_it_is_published() -> None:
    async with running_daemon() as daemon:
        writer, reader = await daemon.client(), await daemon.client()
        namespace = await writer.open()
        await reader.open()
        reserved = await writer.reserve(namespace, {key(1): payload(1)}, layers=4)
        waiting = asyncio.create_task(reader.acquire(namespace, [key(1)], 60_000, wait=True))
        await until(lambda: daemon.service.arrivals.waiting == 1)
        for layer in (1, 3, 2):
            await writer.ask(wire.Done, wire.Advance, reserved.reservations, layer)
        await writer.ask(wire.Committed, wire.Commit, reserved.reservations, reserved.generations, 1000)
        got = await waiting
        assert got.payloads == {0: payload(1)}
        assert [(p.index, p.layer, p.layers) for p in got.progress] == [(0, 1, 4), (0, 3, 4)]
        await writer.close()
        await reader.close()


async def test_who_comes_late_hears_how_far_the_writer_is() -> None:
    async with running_daemon() as daemon:
        writer, reader = await daemon.client(), await daemon.client()
        namespace = await writer.open()
        await reader.open()
        reserved = await writer.reserve(namespace, {key(1): payload(1)}, layers=4)
        await writer.ask(wire.Done, wire.Advance, reserved.reservations, 2)
        got = await reader.acquire(namespace, [key(1)], 100, wait=True)
        assert [(p.layer, p.layers) for p in got.progress] == [(2, 4)] and got.missed == {0}
        assert isinstance(await writer.refused(wire.Advance, reserved.reservations, 5), BadRequest)
        await writer.close()
        await reader.close()


async def test_what_came_last_comes_with_the_last_reply_and_is_leased_as_any_other() -> None:
    async with running_daemon() as daemon:
        writer, reader = await daemon.client(), await daemon.client()
        namespace = await writer.open()
        assert await reader.open() == namespace
        await writer.put(namespace, {key(0): payload(0)})
        await writer.ask(wire.Done, wire.Expect, namespace, [key(1), key(2)], 60_000)
        number = reader.send(wire.Acquire, namespace, [key(0), key(1), key(2)], 60_000, wait=True)
        first = await reader.reply(number, wire.Acquired)
        assert first.index == [0] and first.more
        await writer.put(namespace, {key(1): payload(1)})
        second = await reader.reply(number, wire.Acquired)
        assert second.index == [1] and second.more
        await writer.put(namespace, {key(2): payload(2)})
        last = await reader.reply(number, wire.Acquired)
        assert (last.index, last.missed, last.more) == ([2], [], False) and all(last.leases)
        held = [(reply.leases[0], reply.generations[0]) for reply in (first, second, last)]
        assert (await reader.ask(wire.Done, wire.Release, *map(list, zip(*held, strict=True)))).count == 3
        await writer.close()
        await reader.close()


async def test_a_promise_is_waited_for_until_its_time_is_over() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        await client.ask(wire.Done, wire.Expect, namespace, [key(1)], 150)
        loop = asyncio.get_running_loop()
        started = loop.time()
        assert (await client.acquire(namespace, [key(1)], 60_000, wait=True)).missed == {0}
        assert 0.1 < loop.time() - started < 5.0
        await client.close()


async def test_an_announced_block_is_delivered_whoever_puts_it() -> None:
    async with running_daemon() as daemon:
        client, writer = await daemon.client(), await daemon.client()
        namespace = await client.open()
        await writer.open()
        assert (await client.ask(wire.Done, wire.Expect, namespace, [key(1), key(2)], 60_000)).count == 2
        waiting = asyncio.create_task(client.acquire(namespace, [key(1), key(2)], 60_000, wait=True))
        await writer.put(namespace, {key(1): payload(1)})
        await writer.put(namespace, {key(2): payload(2)})
        assert (await waiting).payloads == {0: payload(1), 1: payload(2)}
        await client.close()
        await writer.close()


async def test_without_a_producer_waiting_is_over_at_once() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        async with asyncio.timeout(5):
            assert (await client.acquire(namespace, [key(1)], 60_000, wait=True)).missed == {0}
        await client.close()


async def test_an_abort_ends_the_wait_at_once() -> None:
    async with running_daemon() as daemon:
        writer, reader = await daemon.client(), await daemon.client()
        namespace = await writer.open()
        await reader.open()
        reserved = await writer.reserve(namespace, {key(1): payload(1)})
        waiting = asyncio.create_task(reader.acquire(namespace, [key(1)], 60_000, wait=True))
        await until(lambda: daemon.service.arrivals.waiting == 1)
        await writer.ask(wire.Done, wire.Abort, reserved.reservations, reserved.generations)
        assert (await waiting).missed == {0}
        await writer.close()
        await reader.close()


# --- races -------------------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(90)
async def test_two_hundred_clients_race_for_the_same_keys_and_readers_see_whole_payloads() -> None:
    async with running_daemon({"dram.capacity": "64MiB", "socket.clients_max": 256}) as daemon:
        clients = [await daemon.client() for _ in range(200)]
        keys, size = [key(i) for i in range(4)], 16 << 10

        async def write(number: int, client: RawClient) -> list[wire.CommitState]:
            namespace = await client.open()
            reserved = await client.reserve(namespace, {name: payload(number, size) for name in keys})
            pairs = [(n, g) for n, g in zip(reserved.reservations, reserved.generations, strict=True) if n]
            if not pairs:
                return []
            committed = await client.ask(
                wire.Committed, wire.Commit, [p[0] for p in pairs], [p[1] for p in pairs], 5000
            )
            return [wire.CommitState(state) for state in committed.states]

        async def read(client: RawClient) -> set[bytes]:
            namespace = await client.open()
            seen = set()
            for _ in range(3):
                seen |= set((await client.acquire(namespace, keys, wait=True)).payloads.values())
            return seen

        writers = [write(number, client) for number, client in enumerate(clients[:150])]
        readers = [read(client) for client in clients[150:]]
        results = await asyncio.gather(*writers, *readers)
        states = [state for found in results[:150] for state in found]
        assert states.count(wire.CommitState.PUBLISHED) == 4, "one wins a key"
        final = (await clients[0].acquire(await clients[0].open(), keys)).payloads
        whole = {payload(number, size) for number in range(150)}
        assert set(final.values()) <= whole
        assert {body for found in results[150:] for body in found} <= set(final.values()), "readers see only the winner"
        for client in clients:
            await client.close()
        # All clients are one living process here: what they still lease waits for a reconnect, nothing is reserved.
        await until(lambda: not any(process.sessions for process in daemon.plane.processes))
        assert dram(daemon)[1] == 0
