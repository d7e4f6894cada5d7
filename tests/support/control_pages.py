"""The JSON pages of a daemon in this process, asked by the real client from a thread; chains of blocks to ask about."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from local_daemon import LocalDaemon, running_daemon
from raw_client import RawClient, payload

from mooncask.client import wire
from mooncask.client.control_client import ControlClient

P = ParamSpec("P")
T = TypeVar("T")

FAMILY = {"model": "tiny", "dtype": "float32", "block_tokens": "16"}


@dataclass
class PagesOf:
    daemon: LocalDaemon
    client: RawClient
    control: ControlClient

    async def ask(self, call: Callable[Concatenate[ControlClient, P], T], /, *args: P.args, **named: P.kwargs) -> T:
        """`await pages.ask(ControlClient.block, "kv-a", key)`"""
        return await asyncio.to_thread(call, self.control, *args, **named)

    async def put_chain(self, namespace: int, keys: Sequence[bytes], parent: bytes = b"", first: int = 0) -> None:
        """Blocks of 16 tokens that continue each other, from `parent` on, `first` being its depth + 1."""
        await put_chain(self.client, namespace, keys, parent, first)


async def put_chain(
    client: RawClient, namespace: int, keys: Sequence[bytes], parent: bytes = b"", first: int = 0
) -> None:
    blocks = {key: payload(int.from_bytes(key[-2:], "big")) for key in keys}
    reserved = await client.reserve(
        namespace,
        blocks,
        parents=[parent, *keys][:-1],
        depths=list(range(first, first + len(keys))),
        tokens=[16] * len(keys),
    )
    pairs = [(n, g) for n, g in zip(reserved.reservations, reserved.generations, strict=True) if n]
    committed = await client.ask(wire.Committed, wire.Commit, [n for n, _ in pairs], [g for _, g in pairs], 5000)
    assert not committed.failures, committed.failures


async def open_kv(client: RawClient, name: str, **family: str) -> int:
    return await client.open(name, family={**FAMILY, **family})


@asynccontextmanager
async def running_pages(settings: dict[str, Any] | None = None) -> AsyncIterator[PagesOf]:
    async with running_daemon({"http.enabled": True, **(settings or {})}) as daemon:
        client = await daemon.client()
        with ControlClient(daemon.path) as control:
            try:
                yield PagesOf(daemon, client, control)
            finally:
                await client.close()
