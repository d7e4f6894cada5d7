"""What the socket refuses: bad requests, malformed frames, strangers, too much at once, other tenants."""

import asyncio
import secrets

import msgspec
import pytest
from local_daemon import running_daemon
from raw_client import RawClient, key, payload

from mooncask.client import wire
from mooncask.errors import (
    AccessDenied,
    BadBucketName,
    BadRequest,
    BlockTooLarge,
    Busy,
    EmptyBlock,
    FamilyMismatch,
    LengthMismatch,
    NoSuchNamespace,
    ProtocolMismatch,
    UnknownLease,
    UnknownReservation,
)

BLOCKS = {key(i): payload(i) for i in range(8)}


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ((wire.Match, 77, [key(1)]), NoSuchNamespace),
        ((wire.Match, 0, []), BadRequest),
        ((wire.Match, 0, [b""]), BadRequest),
        ((wire.Match, 0, [b"x" * 1025]), BadRequest),
        ((wire.Match, 0, [key(i) for i in range(4097)]), BadRequest),
        ((wire.Reserve, 0, [key(1)], [0], 100), EmptyBlock),
        ((wire.Reserve, 0, [key(1)], [1 << 30], 100), BlockTooLarge),
        ((wire.Reserve, 0, [key(1)], [-1], 100), BadRequest),
        ((wire.Reserve, 0, [key(1)], [1, 2], 100), BadRequest),
        ((wire.Reserve, 0, [key(1)], [1], 100, [key(0), key(0)]), BadRequest),
        ((wire.Reserve, 0, [key(1)], [1], 100, [], [-1]), BadRequest),
        ((wire.Reserve, 0, [key(1), key(1)], [1, 1], 100), BadRequest),
        ((wire.Reserve, 0, [key(0)], [4], 100), LengthMismatch),
        ((wire.Commit, [5], [5], 100), UnknownReservation),
        ((wire.Commit, [5, 6], [5], 100), BadRequest),
        ((wire.Abort, [5], [5]), UnknownReservation),
        ((wire.Advance, [5], 1), UnknownReservation),
        ((wire.Release, [5], [5]), UnknownLease),
        ((wire.Release, [5], []), BadRequest),
        ((wire.Adopt, b"nonsense"), BadRequest),
        ((wire.Expect, 0, [key(1)], 0), BadRequest),
        ((wire.SetTtl, 0, [key(1)], -1), BadRequest),
        ((wire.ListBlocks, 0, b"", b"", 0), BadRequest),
        ((wire.Open, "UPPER"), BadBucketName),
        ((wire.Open, "ab"), BadBucketName),
        ((wire.Open, "kv-other", wire.NamespaceKind.KV, {}, "", "sometimes"), BadRequest),
        ((wire.Open, "kv-other", wire.NamespaceKind.KV, {}, "", "write_through"), BadRequest),
        ((wire.Open, "kv-other", wire.NamespaceKind.KV, {}, "", "", "md5"), BadRequest),
        ((wire.Open, "kv-none", wire.NamespaceKind.KV, {}, "", "", "sha256", False), NoSuchNamespace),
        ((wire.Open, "kv-test", wire.NamespaceKind.KV, {"model": "other", "block_tokens": "16"}), FamilyMismatch),
        ((wire.Open, "", wire.NamespaceKind.OBJECT), BadRequest),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_bad_requests_get_a_typed_error_and_the_connection_goes_on(request_, error) -> None:  # type: ignore[no-untyped-def]
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        await client.put(namespace, {key(0): payload(0)})
        kind, *fields = request_
        if kind not in (wire.Open, wire.Commit, wire.Abort, wire.Advance, wire.Release, wire.Adopt) and fields[0] == 0:
            fields[0] = namespace
        refused = await client.refused(kind, *fields)
        assert type(refused) is error, refused
        assert (await client.acquire(namespace, [key(0)])).payloads == {0: payload(0)}
        await client.close()


async def test_another_family_is_refused_by_the_field_that_differs() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        await client.open()
        refused = await client.refused(wire.Open, "kv-test", family={"model": "m", "block_tokens": "32"})
        assert isinstance(refused, FamilyMismatch)
        assert (refused.field, refused.have, refused.got) == ("block_tokens", "16", "32")
        await client.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\x05\x00\x00\x00hello",
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\x7f",
        (4 << 20 | 1).to_bytes(4, "little"),
        wire.HEADER.pack(3) + b"\xc1\xc1\xc1",
        wire.HEADER.pack(5) + msgspec.msgpack.encode([99, 1, 2])[:5].ljust(5, b"\x00"),
        wire.frame(msgspec.msgpack.Encoder(), wire.Hello(1, wire.PROTOCOL, "again", secrets.token_bytes(16))),
    ],
    ids=["text", "empty", "huge", "one byte too many", "no msgpack", "unknown tag", "second Hello"],
)
async def test_a_malformed_frame_closes_its_connection_and_no_other(data: bytes) -> None:
    async with running_daemon() as daemon:
        other, client = await daemon.client(), await daemon.client()
        namespace = await other.open()
        client.send_raw(data)
        await client.closed_by_daemon()
        await other.put(namespace, BLOCKS)
        status = await other.ask(wire.Status, wire.Stat)
        assert status.counters["frames_malformed"] == 1 and status.clients == 1
        await other.close()
        await client.close()


async def test_frames_may_arrive_in_any_pieces() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        await client.put(namespace, BLOCKS)
        (connection,) = daemon.local._connections
        number = client.send(wire.Stat)
        await client.reply(number, wire.Status)
        data = b"".join(
            wire.frame(msgspec.msgpack.Encoder(), wire.Match(1000 + i, namespace, list(BLOCKS))) for i in range(3)
        )
        for i in range(len(data)):
            connection.data_received(data[i : i + 1])
        for i in range(3):
            client._replies.setdefault(1000 + i, asyncio.Queue())
            assert len((await client.reply(1000 + i, wire.Matched)).tiers) == 8
        await client.close()


async def test_a_stranger_at_the_door_is_told_why() -> None:
    async with running_daemon({"socket.clients_max": 2}) as daemon:
        with pytest.raises(ProtocolMismatch):
            await daemon.client(protocol=99)
        with pytest.raises(BadRequest):
            await daemon.client(token=b"short")
        clients = [await daemon.client(), await daemon.client()]
        with pytest.raises(Busy):
            await daemon.client()
        for client in clients:
            await client.close()


async def test_a_client_that_does_not_read_is_not_read_from() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        await client.put(namespace, BLOCKS)
        assert client._reader is not None
        client._reader.cancel()
        loop = asyncio.get_running_loop()
        question = wire.frame(msgspec.msgpack.Encoder(), wire.ListBlocks(5, namespace)) * 200
        sent = 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                while True:
                    await loop.sock_sendall(client.sock, question)
                    sent += 1
        (connection,) = daemon.local._connections
        assert connection._transport is not None
        assert connection._transport.get_write_buffer_size() < 4 << 20
        assert len(connection._buffer) < 1 << 20
        await client.close()


async def test_no_more_requests_of_one_client_run_than_are_allowed() -> None:
    async with running_daemon({"limits.requests_open_max": 4, "dram.capacity": "4MiB"}) as daemon:
        client = await daemon.client()
        namespace = await client.open()
        blocks = {key(i): payload(i, 1 << 20) for i in range(2)}
        await client.put(namespace, blocks)
        got = await client.acquire(namespace, list(blocks))
        waiting = [client.send(wire.Reserve, namespace, [key(100 + i)], [1 << 20], 400) for i in range(6)]
        after = client.send(wire.Match, namespace, [key(0)])
        (connection,) = daemon.local._connections
        other = await daemon.client()
        assert (await other.ask(wire.Status, wire.Stat)).clients == 2
        assert len(connection.tasks) == 4
        for number in waiting:
            with pytest.raises(Busy):
                await client.reply(number, wire.Reserved)
        assert (await client.reply(after, wire.Matched)).tiers
        assert got.leases
        await client.close()
        await other.close()


# --- tenants -------------------------------------------------------------------------------------------------------------------


async def test_a_namespace_of_another_tenant_is_refused_whatever_the_handle_says(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    async with running_daemon({"tenants.other.uids": [12345]}) as daemon:
        mine = await daemon.client()
        namespace = await mine.open("kv-mine")
        await mine.put(namespace, BLOCKS)
        (process,) = daemon.plane.processes
        process.tenant = "other"  # as if uid 12345 had connected
        assert isinstance(await mine.refused(wire.Match, namespace, [key(1)]), AccessDenied)
        assert isinstance(
            await mine.refused(wire.Open, "kv-mine", family={"model": "m", "block_tokens": "16"}), AccessDenied
        )
        assert not (await mine.ask(wire.Status, wire.Stat)).namespaces
        await mine.close()


async def test_a_process_token_belongs_to_one_process() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        (process,) = daemon.plane.processes
        object.__setattr__(process.peer, "pid", process.peer.pid + 1)  # as if another process had drawn the same
        with pytest.raises(AccessDenied):
            await RawClient.connect(daemon.path, client.token)
        await client.close()
