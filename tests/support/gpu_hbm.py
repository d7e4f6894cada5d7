"""The HBM part of the GPU check: a store with device memory, and another process that reads its blocks by CUDA IPC.

On the CPU everything is the same but the handle: there the second process is left out and the store's own memory is read.
Run as a program it is that second process: handle and places on stdin, digests on stdout.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from store_driver import get, kv, opened, put, store_config

from mooncask.tiers.block import WriteMode
from mooncask.tiers.checksum import payload_checksum
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.store import Store

PROMOTED_SECONDS = 30.0
IMPORT_ROOT = Path(__file__).resolve().parents[2] / ".importroot"


class Place(NamedTuple):
    """Where a block lies in the device's memory."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class HbmSizes:
    block_bytes: int
    hbm_blocks: int
    """As many fit on the device; half as many more are stored."""


@dataclass(frozen=True, slots=True)
class HbmFindings:
    device: str
    blocks_stored: int
    blocks_promoted: int
    promote_seconds: float
    blocks_evicted: int
    read_by_other_process: int
    """Blocks that a second process read through the handle and whose bytes were right; 0 on the CPU, which has no handles."""
    wrong: int


def check_hbm(device: str, sizes: HbmSizes) -> HbmFindings:
    """Raises AssertionError when the tier does not do what it promises."""
    return asyncio.run(_check(device, sizes))


async def _check(device: str, sizes: HbmSizes) -> HbmFindings:
    total = sizes.hbm_blocks + sizes.hbm_blocks // 2
    capacity = sizes.hbm_blocks * sizes.block_bytes
    config = store_config(
        None, dram_bytes=2 * total * sizes.block_bytes, hbm_bytes=capacity, hbm_device=device, block_bytes_max=64 << 20
    )
    async with opened(config) as store:
        namespace = await kv(store, mode=WriteMode.MEMORY)
        payloads = {number.to_bytes(16, "big"): _payload(number, sizes.block_bytes) for number in range(total)}
        for key, payload in payloads.items():
            assert await put(store, namespace, key, payload, seconds=30.0)
        keys = list(payloads)
        first, second = keys[: sizes.hbm_blocks], keys[sizes.hbm_blocks :]
        seconds = await _promote(store, namespace, first)
        found = await _digests(store, device, [_place(store, namespace, key) for key in first])
        wrong = sum(digest != payload_checksum(payloads[key]) for digest, key in zip(found, first, strict=True))
        await _promote(store, namespace, second)
        evicted = sum(not _in_hbm(store, namespace, key) for key in first)
        again = await _digests(store, device, [_place(store, namespace, key) for key in second])
        wrong += sum(digest != payload_checksum(payloads[key]) for digest, key in zip(again, second, strict=True))
        for key in keys:
            assert await get(store, namespace, key) == payloads[key], "what left the device is still in memory"
        assert wrong == 0, f"{wrong} blocks on {device} are not what was stored"
        assert evicted >= len(second), "the device holds more than it can"
        other = len(first) + len(second) if device != "cpu" else 0
        return HbmFindings(device, total, len(first) + len(second), seconds, evicted, other, wrong)


async def _promote(store: Store, namespace: Namespace, keys: Sequence[bytes]) -> float:
    """Uses each block until it is on the device; the seconds that took."""
    started = time.monotonic()
    for key in keys:
        while not _in_hbm(store, namespace, key):
            assert time.monotonic() - started < PROMOTED_SECONDS, "a block that is used is not promoted"
            assert await get(store, namespace, key) is not None
            await asyncio.sleep(0.001)
    return time.monotonic() - started


def _in_hbm(store: Store, namespace: Namespace, key: bytes) -> bool:
    return namespace.index[key] in store._parts.catalogue.hbm


def _place(store: Store, namespace: Namespace, key: bytes) -> Place:
    slot = namespace.index[key]
    return Place(store._parts.catalogue.hbm[slot].offset, store._parts.catalogue.size[slot])


async def _digests(store: Store, device: str, places: Sequence[Place]) -> list[bytes]:
    hbm = store.hbm
    assert hbm is not None
    if device == "cpu":
        return [_digest(lambda place=place: _own_bytes(hbm.memory, place)) for place in places]
    asked = msgspec.msgpack.encode([hbm.export_handle(), places])
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, __file__], input=asked, stdout=subprocess.PIPE, check=True
    )
    return msgspec.msgpack.decode(done.stdout, type=list[bytes])


def _own_bytes(memory: Any, place: Place) -> bytes:
    into = bytearray(place.size)
    memory.read(place.offset, memoryview(into))
    return bytes(into)


def _digest(read: Callable[[], bytes]) -> bytes:
    return payload_checksum(memoryview(read()))


def _payload(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def read_by_handle(asked: bytes) -> bytes:
    """The second process: maps the device's memory and reads the places."""
    handle, places = msgspec.msgpack.decode(asked, type=tuple[bytes, list[Place]])
    arguments = msgspec.msgpack.decode(handle)
    storage = torch.UntypedStorage._new_shared_cuda(*arguments)  # type: ignore[attr-defined]  # torch's own, without types
    memory = torch.empty(0, dtype=torch.uint8, device=f"cuda:{arguments[0]}").set_(storage)
    found = [memory[offset : offset + size].cpu().numpy().tobytes() for offset, size in places]
    return msgspec.msgpack.encode([payload_checksum(memoryview(one)) for one in found])


if __name__ == "__main__":
    sys.stdout.buffer.write(read_by_handle(sys.stdin.buffer.read()))
