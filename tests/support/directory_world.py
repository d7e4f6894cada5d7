"""Nodes of a directory in this process, and what is waited for: `world.node("n1")` is one, without a daemon."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

from xxhash import xxh3_128_digest

from mooncask.daemon.config import ClusterSection
from mooncask.daemon.directory.directory import NodeRecord, new_incarnation
from mooncask.daemon.directory.valkey import ValkeyDirectory
from mooncask.daemon.directory.valkey_client import open_valkey_directory

NS = b"namespace-of-16b"
OTHER_NS = b"another-of-16byt"
SECONDS = 10.0


def keys_of(count: int, start: int = 0) -> list[bytes]:
    """Digests, as keys are."""
    return [xxh3_128_digest(number.to_bytes(8, "little")) for number in range(start, start + count)]


def soon(seconds: float = 2.0) -> float:
    return time.monotonic() + seconds


class World:
    """Nodes in one directory. `has` is what each would tell anew."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.has: dict[bytes, list[bytes]] = {}
        self.counters: Counter[str] = Counter()

    @asynccontextmanager
    async def node(self, name: str, incarnation: bytes = b"", ttl: float = 3.0) -> AsyncIterator[ValkeyDirectory]:
        me = incarnation or new_incarnation(name)

        def held() -> Iterator[tuple[bytes, Sequence[bytes]]]:
            yield NS, self.has.get(me, [])

        record = NodeRecord(name, me, f"{name}:7000")
        section = ClusterSection(directory=self.url, ttl=ttl)
        directory = open_valkey_directory(section, lambda: record, held, self.counters)
        try:
            await until(lambda: directory.state == "ok")
            yield directory
        finally:
            await directory.close()


async def until(
    holds: Callable[[], bool], seconds: float = SECONDS, work: Callable[[], Awaitable[object]] | None = None
) -> None:
    """`work` is done again and again meanwhile."""
    async with asyncio.timeout(seconds):
        while not holds():
            if work is not None:
                await work()
            await asyncio.sleep(0.01)


async def found(directory: ValkeyDirectory, keys: list[bytes], count: int, seconds: float = SECONDS) -> None:
    """Until exactly so many nodes are known for every key."""
    async with asyncio.timeout(seconds):
        while not all(len(holders) == count for holders in await directory.lookup(NS, keys, soon())):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def holders_are(directory: ValkeyDirectory, keys: list[bytes], expected: list[list[bytes]]) -> None:
    async with asyncio.timeout(SECONDS):
        while await directory.lookup(NS, keys, soon()) != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
