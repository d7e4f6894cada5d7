"""Nodes without daemons, for measures of a directory's server: many in one process tell it of made-up blocks and look them up.

    python -m mooncask.daemon.directory.measuring URLS FIRST COUNT TTL

Nodes FIRST to FIRST + COUNT - 1, each with the client, the queue and the heartbeats of a real one (`valkey.py`); what they lack
is a store. One request a line on stdin, one answer a line on stdout, both JSON; it ends with its stdin. `mooncask bench
directory` is who asks.
"""

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import xxhash

from mooncask.daemon.config import ClusterSection
from mooncask.daemon.directory.directory import NodeRecord, new_incarnation
from mooncask.daemon.directory.valkey import ValkeyDirectory
from mooncask.daemon.directory.valkey_client import open_valkey_directory

NS_ID = b"mooncask-measure"
SLICE_KEYS = 512
POLL_SECONDS = 0.002
LOOKUP_SECONDS = 30.0


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`prepare`: make the next `keys` keys of each node; `announce` or `withdraw` them; `look`: time `rounds` look-ups of `keys`
    keys each that are announced by the nodes `nodes`, `told` each."""

    do: str
    keys: int = 0
    rounds: int = 0
    nodes: list[int] = msgspec.field(default_factory=list)
    told: int = 0


class Answer(msgspec.Struct, frozen=True):
    """`seconds`: of the whole, or of each look-up. `found`: holders of all keys, summed. `late`: look-ups that gave up."""

    seconds: list[float]
    found: int = 0
    late: int = 0


def key_of(node: int, number: int) -> bytes:
    """As keys are: a digest. The same in every process."""
    return xxhash.xxh3_128_digest(node.to_bytes(4, "little") + number.to_bytes(8, "little"))


class Nodes:
    """Of one process. Requests are carried out one after the other."""

    def __init__(self, urls: str, first: int, count: int, ttl_seconds: float) -> None:
        self._section = ClusterSection(directory=urls, ttl=ttl_seconds)
        self._counters: Counter[str] = Counter()
        self._numbers = range(first, first + count)
        self._directories = [self._open(number) for number in self._numbers]
        self._told = 0
        self._next: list[list[bytes]] = []

    def _open(self, number: int) -> ValkeyDirectory:
        record = NodeRecord(f"measure-{number}", new_incarnation(f"measure-{number}"), f"measure-{number}:7000")
        return open_valkey_directory(self._section, lambda: record, lambda: iter(()), self._counters)

    async def carry_out(self, request: Request) -> Answer:
        match request.do:
            case "up":
                return await self._up()
            case "prepare":
                return self._prepare(request)
            case "announce" | "withdraw":
                return await self._tell(request.do == "announce")
            case _:
                return await self._look(request)

    async def _up(self) -> Answer:
        began = time.monotonic()
        await _until(lambda: all(directory.state == "ok" for directory in self._directories))
        return Answer([time.monotonic() - began])

    def _prepare(self, request: Request) -> Answer:
        numbers = range(self._told, self._told + request.keys)
        self._next = [[key_of(node, i) for i in numbers] for node in self._numbers]
        self._told += request.keys
        return Answer([0.0])

    async def _tell(self, here: bool) -> Answer:
        name = "directory_announced" if here else "directory_withdrawn"
        wanted = self._counters[name] + sum(map(len, self._next))
        began = time.monotonic()
        for directory, keys in zip(self._directories, self._next, strict=True):
            for at in range(0, len(keys), SLICE_KEYS):
                (directory.announce if here else directory.withdraw)(NS_ID, keys[at : at + SLICE_KEYS])
                await asyncio.sleep(0)
        await _until(lambda: self._lost() or self._counters[name] >= wanted)
        if self._lost():
            raise RuntimeError(f"the directory did not take all: {dict(self._counters)}")
        return Answer([time.monotonic() - began])

    def _lost(self) -> bool:
        return bool(self._counters["directory_news_dropped"] or self._counters["directory_failures"])

    async def _look(self, request: Request) -> Answer:
        """By the first node; not for its own blocks."""
        dice, reader = random.Random(request.rounds), self._directories[0]
        seconds: list[float] = []
        found = late = 0
        await self._know(reader, {f"measure-{number}" for number in request.nodes})
        for _ in range(request.rounds):
            keys = [key_of(dice.choice(request.nodes), dice.randrange(request.told)) for _ in range(request.keys)]
            began = time.perf_counter()
            answer = await reader.lookup(NS_ID, keys, time.monotonic() + LOOKUP_SECONDS)
            seconds.append(time.perf_counter() - began)
            found += sum(map(len, answer))
            if reader.state != "ok":
                late += 1
                await _until(lambda: reader.state == "ok")
        return Answer(seconds, found, late)

    async def _know(self, reader: ValkeyDirectory, names: set[str]) -> None:
        """Nodes that have just come are strangers until the list is read again: what they hold gets no credit until then."""
        while not names <= {node.name for node in await reader.nodes(time.monotonic() + LOOKUP_SECONDS)}:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)

    async def close(self) -> None:
        await asyncio.gather(*(directory.close() for directory in self._directories))


async def _until(holds: Callable[[], bool]) -> None:
    """Nothing tells of it, and what polls here costs less than what is measured."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(POLL_SECONDS)


async def main(arguments: Sequence[str]) -> None:
    urls, first, count, ttl = arguments
    nodes = Nodes(urls, int(first), int(count), float(ttl))
    loop = asyncio.get_running_loop()
    try:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            answer = await nodes.carry_out(msgspec.json.decode(line, type=Request))
            sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
            sys.stdout.flush()
    finally:
        await nodes.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(sys.argv[1:]))
