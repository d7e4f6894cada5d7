"""A process that works on an NVMe tier until it is killed, and says what it was promised: see `verdict` for the rules.

    python nvme_crash_child.py FOLDER SEED OPERATIONS

Each line on stdout is "begin KEY STATE" or "done KEY STATE"; STATE is the seed of the payload, or "-" for deleted.
"""

import asyncio
import os
import random
import sys
from collections.abc import Iterable
from pathlib import Path

from nvme_doubles import MIB, NAMESPACE, SmallStore, config, payload_of

from mooncask.tiers.nvme import NvmeConfig

KEYS = 12
WORKERS = 4
GONE = "-"


def crash_config(folder: Path) -> NvmeConfig:
    """Seven segments for about three segments' worth of blocks: it reclaims all the time."""
    return config(folder, 15 * MIB, 2 * MIB)


def size_of(seed: int) -> int:
    return 100_000 + seed * 7919 % 700_000


def say(word: str, key: bytes, state: str) -> None:
    os.write(1, f"{word} {key.decode()} {state}\n".encode())


async def work(store: SmallStore, chooser: random.Random, keys: list[bytes], operations: int) -> None:
    for _ in range(operations):
        key = chooser.choice(keys)
        if (NAMESPACE, key) in store.blocks and chooser.random() < 0.3:
            say("begin", key, GONE)
            await store.delete(key)
            say("done", key, GONE)
            continue
        seed = chooser.randrange(1 << 30)
        say("begin", key, str(seed))
        await store.put(key, size_of(seed), seed)
        say("done", key, str(seed))


async def main(folder: str, seed: str, operations: str) -> None:
    store = await SmallStore().open(crash_config(Path(folder)))
    keys = [b"k%d" % i for i in range(KEYS)]
    await asyncio.gather(
        *(
            work(store, random.Random(f"{seed}/{worker}"), keys[worker::WORKERS], int(operations))
            for worker in range(WORKERS)
        )
    )
    await store.close()


class Promises:
    """What a key may be after the crash: what was promised last, or what was under way."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._under_way: dict[str, str] = {}

    def read(self, lines: Iterable[str]) -> None:
        for line in lines:
            word, key, state = line.split()
            if word == "begin":
                self._under_way[key] = state
            else:
                self._last[key] = self._under_way.pop(key)

    def allowed(self, key: str) -> set[str]:
        states = {self._last.get(key, GONE)}
        return states | {self._under_way[key]} if key in self._under_way else states

    def settle(self, found: dict[str, str]) -> None:
        """After a restart that was checked: what was found is what counts."""
        self._under_way.clear()
        self._last = dict(found)


async def state_of(store: SmallStore, allowed: set[str], key: str) -> str:
    """Which of the allowed states the key is in; an AssertionError when in none."""
    if (NAMESPACE, key.encode()) not in store.blocks:
        assert GONE in allowed, f"{key} was promised to be {allowed} and is gone"
        return GONE
    content = await store.get(key.encode())
    for state in allowed - {GONE}:
        if content == bytes(payload_of(int(state), size_of(int(state)))[: size_of(int(state))]):
            return state
    raise AssertionError(f"{key} was promised to be {allowed}; it has {len(content)} other bytes")


async def verdict(store: SmallStore, promises: Promises) -> dict[str, str]:
    """Checks every key byte for byte and the tier as a whole; returns what was found."""
    found = {f"k{i}": await state_of(store, promises.allowed(f"k{i}"), f"k{i}") for i in range(KEYS)}
    assert {key.decode() for _, key in store.blocks} <= set(found)
    assert await store.tier.check() == []
    return {key: state for key, state in found.items() if state != GONE}


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
