"""A client that speaks bare frames to a daemon's socket, so that tests can say what no well-behaved client says."""

import asyncio
import json
import mmap
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from mooncask.client import wire
from mooncask.errors import MooncaskError, revive

SECONDS = 10.0
"""How long a test waits for what must come at once."""

Reply = TypeVar("Reply", bound=wire.Message)


@dataclass
class RawClient:
    """One connection. Replies are sorted by request; `ask` raises what the daemon answers with Failed."""

    sock: socket.socket
    welcome: wire.Welcome
    token: bytes
    maps: dict[str, mmap.mmap]
    _replies: dict[int, asyncio.Queue[wire.Reply]] = field(default_factory=dict)
    _next: int = 2
    _reader: "asyncio.Task[None] | None" = None
    eof: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    async def connect(cls, path: str, token: bytes | None = None, **hello: Any) -> "RawClient":
        loop = asyncio.get_running_loop()
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        await loop.sock_connect(sock, path)
        token = token or secrets.token_bytes(16)
        first = wire.Hello(1, hello.pop("protocol", wire.PROTOCOL), hello.pop("client", "test"), token, **hello)
        await loop.sock_sendall(sock, wire.frame(msgspec.msgpack.Encoder(), first))
        frame, descriptors = await asyncio.wait_for(_receive_with_descriptors(sock), SECONDS)
        reply = msgspec.msgpack.decode(frame, type=wire.Reply)
        if isinstance(reply, wire.Failed):
            sock.close()
            raise revive(reply.error, reply.message, reply.data)
        assert isinstance(reply, wire.Welcome)
        client = cls(sock, reply, token, _mapped(reply, descriptors))
        client._reader = asyncio.create_task(client._read())
        return client

    @property
    def writing(self) -> mmap.mmap:
        return self.maps.get("staging") or self.maps["arena-writable"]

    # --- requests ---

    def send(self, kind: type[wire.Message], /, *fields: Any, **named: Any) -> int:
        number, self._next = self._next, self._next + 1
        self._replies[number] = asyncio.Queue()
        self.send_raw(wire.frame(msgspec.msgpack.Encoder(), kind(number, *fields, **named)))
        return number

    def send_raw(self, data: bytes) -> None:
        self.sock.setblocking(True)
        self.sock.sendall(data)
        self.sock.setblocking(False)

    async def reply(self, number: int, kind: type[Reply]) -> Reply:
        found = await asyncio.wait_for(self._replies[number].get(), SECONDS)
        if isinstance(found, wire.Failed):
            raise revive(found.error, found.message, found.data)
        assert isinstance(found, kind), found
        return found

    async def ask(self, reply: type[Reply], kind: type[wire.Message], /, *fields: Any, **named: Any) -> Reply:
        return await self.reply(self.send(kind, *fields, **named), reply)

    async def refused(self, kind: type[wire.Message], /, *fields: Any, **named: Any) -> MooncaskError:
        """The error that the request is answered with."""
        try:
            found = await self.ask(wire.Message, kind, *fields, **named)
        except MooncaskError as error:
            return error
        raise AssertionError(f"not refused: {found}")

    # --- what tests do all the time ---

    async def open(self, name: str = "kv-test", **named: Any) -> int:
        named.setdefault("family", {"model": "m", "block_tokens": "16"})
        return (await self.ask(wire.Opened, wire.Open, name, **named)).namespace

    async def reserve(self, namespace: int, blocks: dict[bytes, bytes], **named: Any) -> wire.Reserved:
        """Reserved and, where there is a place, written."""
        sizes = [len(payload) for payload in blocks.values()]
        reserved = await self.ask(wire.Reserved, wire.Reserve, namespace, list(blocks), sizes, 1000, **named)
        for number, offset, payload in zip(reserved.reservations, reserved.offsets, blocks.values(), strict=True):
            if number:
                self.writing[offset : offset + len(payload)] = payload
        return reserved

    async def put(self, namespace: int, blocks: dict[bytes, bytes], **named: Any) -> list[wire.CommitState]:
        reserved = await self.reserve(namespace, blocks)
        pairs = [(n, g) for n, g in zip(reserved.reservations, reserved.generations, strict=True) if n]
        committed = await self.ask(
            wire.Committed, wire.Commit, [n for n, _ in pairs], [g for _, g in pairs], 5000, **named
        )
        assert not committed.failures, committed.failures
        return [wire.CommitState(state) for state in committed.states]

    async def acquire(self, namespace: int, keys: Sequence[bytes], deadline_ms: int = 1000, **named: Any) -> "Got":
        number = self.send(wire.Acquire, namespace, list(keys), deadline_ms, **named)
        got = Got()
        while True:
            found = await self.reply(number, wire.Message)
            if isinstance(found, wire.Progress):
                got.progress.append(found)
                continue
            assert isinstance(found, wire.Acquired)
            got.add(found, self.maps["arena"])
            if not found.more:
                return got

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        self.sock.close()
        for memory in self.maps.values():
            memory.close()

    async def closed_by_daemon(self) -> None:
        await asyncio.wait_for(self.eof.wait(), SECONDS)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        data = bytearray()
        while True:
            try:
                part = await loop.sock_recv(self.sock, 1 << 16)
            except OSError:
                part = b""
            if not part:
                self.eof.set()
                return
            data += part
            while len(data) >= 4 and len(data) >= 4 + wire.HEADER.unpack_from(data)[0]:
                stop = 4 + wire.HEADER.unpack_from(data)[0]
                reply = msgspec.msgpack.decode(bytes(data[4:stop]), type=wire.Reply)
                del data[:stop]
                self._replies.setdefault(reply.id, asyncio.Queue()).put_nowait(reply)


@dataclass
class Got:
    """All frames of one Acquire."""

    leases: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Index -> (lease, generation)."""
    payloads: dict[int, bytes] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    tiers: dict[int, int] = field(default_factory=dict)
    missed: set[int] = field(default_factory=set)
    progress: list[wire.Progress] = field(default_factory=list)
    token: bytes = b""
    frames: int = 0

    def add(self, reply: wire.Acquired, arena: mmap.mmap) -> None:
        self.frames += 1
        columns = zip(
            reply.index, reply.leases, reply.generations, reply.offsets, reply.sizes, reply.tiers, strict=True
        )
        for index, lease, generation, offset, size, tier in columns:
            assert index not in self.leases and index not in self.missed, "an item is decided once"
            self.leases[index] = (lease, generation)
            self.payloads[index] = arena[offset : offset + size]
            self.places[index] = offset
            self.tiers[index] = tier
        self.missed |= set(reply.missed)
        self.token = reply.token or self.token

    @property
    def ids(self) -> tuple[list[int], list[int]]:
        """(leases, generations), as Release wants them."""
        return [lease for lease, _ in self.leases.values()], [generation for _, generation in self.leases.values()]


def payload(seed: int, size: int = 8192) -> bytes:
    """Bytes that no other seed has."""
    return (seed.to_bytes(8, "little") * (size // 8 + 1))[:size]


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def status_json(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body)
    return found


async def _receive_with_descriptors(sock: socket.socket) -> tuple[bytes, list[int]]:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    data, descriptors = b"", list[int]()
    loop.add_reader(sock.fileno(), readable.set)
    try:
        while len(data) < 4 or len(data) < 4 + wire.HEADER.unpack_from(data)[0]:
            await readable.wait()
            readable.clear()
            part, found, _, _ = socket.recv_fds(sock, 1 << 16, 4)
            descriptors += found
            if not part:
                raise ConnectionResetError("closed by the daemon")
            data += part
    finally:
        loop.remove_reader(sock.fileno())
    return data[4:], descriptors


def _mapped(welcome: wire.Welcome, descriptors: list[int]) -> dict[str, mmap.mmap]:
    maps = {}
    for name, descriptor in zip(welcome.descriptors, descriptors, strict=True):
        size = welcome.staging_bytes if name == "staging" else welcome.arena_bytes
        protection = mmap.PROT_READ if name == "arena" else mmap.PROT_READ | mmap.PROT_WRITE
        maps[name] = mmap.mmap(descriptor, size, prot=protection)
        os.close(descriptor)
    return maps
