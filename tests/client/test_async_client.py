"""The asyncio client does what the sync one does, on asyncio's own loop and on uvloop."""

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from client_checks import PATIENCE_SECONDS, keys_of, payload_of
from daemon_process import DaemonProcess

from mooncask.client.aio import AsyncLocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.wire import CommitState
from mooncask.errors import DaemonUnavailable, DeadlineExceeded, LengthMismatch

PUBLISHED = CommitState.PUBLISHED


@pytest_asyncio.fixture
async def client(daemon: DaemonProcess) -> AsyncIterator[AsyncLocalClient]:
    async with await AsyncLocalClient.connect(daemon.socket_path, "test", deadline_seconds=10.0) as connected:
        yield connected


@pytest_asyncio.fixture
async def namespace(client: AsyncLocalClient, request: pytest.FixtureRequest) -> NamespaceHandle:
    family = {"model": request.node.nodeid, "block_tokens": "4"}
    return await client.open_namespace(family=family, mode="memory")


async def leases_on(client: AsyncLocalClient, namespace: NamespaceHandle, key: bytes) -> int:
    client.flush()
    (stat,) = await client.stat(namespace, [key])
    assert stat is not None
    return stat.leases


async def test_what_was_put_is_read_in_place(client: AsyncLocalClient, namespace: NamespaceHandle) -> None:
    keys = keys_of(200)
    payloads = [payload_of(key, 3000) for key in keys]
    assert await client.put(namespace, keys, payloads) == [PUBLISHED] * 200
    assert len(await client.match(namespace, keys)) == 200
    with await client.acquire(namespace, keys) as blocks:
        assert [bytes(block.memory) for block in blocks if block] == payloads


async def test_large_copies_run_beside_the_loop(client: AsyncLocalClient, namespace: NamespaceHandle) -> None:
    keys = keys_of(3)
    payloads = [payload_of(key, 3 << 20) for key in keys]
    await client.put(namespace, keys, payloads)
    buffers = [bytearray(3 << 20) for _ in keys]
    assert await client.get_into(namespace, keys, buffers) == [True] * 3
    assert [bytes(buffer) for buffer in buffers] == payloads
    with pytest.raises(LengthMismatch):
        await client.put(namespace, keys[:1], [b"other length"])


async def test_calls_of_many_tasks_run_side_by_side(client: AsyncLocalClient, namespace: NamespaceHandle) -> None:
    async def work(label: str) -> bool:
        keys = keys_of(5, label)
        payloads = [payload_of(key, 500) for key in keys]
        await client.put(namespace, keys, payloads)
        with await client.acquire(namespace, keys) as blocks:
            return [bytes(block.memory) for block in blocks if block] == payloads

    assert all(await asyncio.gather(*(work(str(i)) for i in range(40))))


async def test_places_are_reserved_advanced_and_committed(client: AsyncLocalClient, namespace: NamespaceHandle) -> None:
    keys = keys_of(2)
    told: list[tuple[int, int, int]] = []
    reservations = await client.reserve(namespace, keys, [8, 8], layers=2)
    waiting = asyncio.create_task(client.acquire(namespace, keys, wait=True, progress=lambda *item: told.append(item)))
    for slot in reservations.to_write:
        slot.memory[:] = payload_of(slot.key, 8)
    await reservations.advance(1)
    assert await reservations.commit() == [PUBLISHED] * 2
    blocks = await waiting
    assert blocks.prefix == 2
    assert set(told) <= {(0, 1, 2), (1, 1, 2)}


async def test_what_is_not_committed_is_given_back(client: AsyncLocalClient, namespace: NamespaceHandle) -> None:
    async def reserved_bytes() -> int:
        return sum(tier.reserved_bytes for tier in (await client.status()).tiers)

    with await client.reserve(namespace, keys_of(1), [4096]):
        assert await reserved_bytes() == 4096
    assert await reserved_bytes() == 0


async def test_a_lease_ends_with_the_last_view(client: AsyncLocalClient, namespace: NamespaceHandle) -> None:
    (key,) = keys_of(1)
    await client.put(namespace, [key], [b"x" * 100])
    blocks = await client.acquire(namespace, [key])
    (block,) = blocks
    assert block is not None
    view = block.memory[10:]
    del block
    blocks.close()
    assert await leases_on(client, namespace, key) == 1
    del view
    assert await leases_on(client, namespace, key) == 0


async def test_a_cancelled_acquire_leaves_no_lease(client: AsyncLocalClient, namespace: NamespaceHandle) -> None:
    here, expected = keys_of(2)
    await client.put(namespace, [here], [b"x" * 100])
    await client.expect(namespace, [expected], ttl_seconds=60.0)
    waiting = asyncio.create_task(client.acquire(namespace, [here, expected], wait=True))
    while await leases_on(client, namespace, here) == 0:
        pass  # its first answer has come when the lease is there
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    del waiting
    gc.collect()
    assert await leases_on(client, namespace, here) == 0
    await client.put(namespace, [expected], [b"y"])  # the daemon's last answer to the cancelled call has a lease
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await leases_on(client, namespace, expected) > 0:
            pass


async def test_housekeeping(client: AsyncLocalClient, namespace: NamespaceHandle) -> None:
    keys = sorted(keys_of(3))
    await client.put(namespace, keys, [b"x"] * 3)
    assert await client.pin(namespace, keys) == await client.unpin(namespace, keys) == 3
    assert await client.set_ttl(namespace, keys, 100.0) == await client.set_ttl(namespace, keys, None) == 3
    assert await client.verify(namespace, [*keys, b"missing"]) == [True] * 3 + [False]
    assert [block.key for block in (await client.list_blocks(namespace)).blocks] == keys
    assert await client.evict(namespace, keys) == 3
    assert await client.stat(namespace, keys) == [None] * 3


async def test_leases_move_between_clients(daemon: DaemonProcess, client: AsyncLocalClient) -> None:
    namespace = await client.open_namespace(family={"model": "moved", "block_tokens": "4"}, mode="memory")
    keys = keys_of(2)
    await client.put(namespace, keys, [payload_of(key) for key in keys])
    token = (await client.acquire(namespace, keys, want_token=True)).hand_over()
    async with await AsyncLocalClient.connect(daemon.socket_path) as other:
        blocks = await other.adopt(token)
        assert [bytes(block.memory) for block in blocks if block] == [payload_of(key) for key in keys]
        assert await leases_on(client, namespace, keys[0]) == 1


async def test_an_absent_daemon_is_named(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnavailable, match="mooncask serve"):
        await AsyncLocalClient.connect(tmp_path / "nothing")


async def test_deadlines_death_and_restart(tmp_path: Path) -> None:
    settings = {"http.enabled": False}
    with DaemonProcess.start(tmp_path, settings) as daemon:
        async with await AsyncLocalClient.connect(daemon.socket_path, deadline_seconds=10.0) as client:
            namespace = await client.open_namespace(family={"model": "m", "block_tokens": "4"})
            keys = keys_of(2)
            await client.put(namespace, keys, [payload_of(key) for key in keys], durable=True)
            (old, _) = await client.acquire(namespace, keys)
            daemon.freeze()
            with pytest.raises(DeadlineExceeded, match="match"):
                await client.match(namespace, keys, deadline_seconds=0.05)
            daemon.thaw()
            await client.expect(namespace, keys_of(1, "never"), 60.0)
            waiting = asyncio.create_task(client.acquire(namespace, keys_of(1, "never"), 60.0, wait=True))
            await client.status()
            daemon.kill()
            with pytest.raises(DaemonUnavailable):
                await waiting
            with pytest.raises(DaemonUnavailable):
                await client.status()
            daemon.run()
            assert len(await client.match(namespace, keys)) == 2
            with await client.acquire(namespace, keys) as blocks:
                assert [bytes(block.memory) for block in blocks if block] == [payload_of(key) for key in keys]
            assert old is not None and bytes(old.memory) == payload_of(keys[0])
