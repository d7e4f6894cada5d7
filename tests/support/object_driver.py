"""Speaks to a daemon's `Objects` in bytes: put this, what is there, what lies in the hidden namespace."""

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
from child_processes import until
from local_daemon import LocalDaemon

from mooncask.client import wire
from mooncask.daemon.objects.attributes import ALWAYS, ObjectAttributes, ObjectInfo, PutCondition
from mooncask.daemon.objects.reader import ObjectReader, Pieces
from mooncask.tiers.namespace import Namespace, parts_name

MIB = 1 << 20
CHUNK = MIB
SETTINGS: dict[str, Any] = {"limits.block_max": "1MiB", "dram.capacity": "32MiB"}
"""With these an object of more than CHUNK bytes lies in chunks of CHUNK bytes."""


def body(size: int, seed: int = 1) -> bytes:
    """The same for the same arguments; no two chunks alike."""
    return np.random.default_rng(seed).bytes(size)


def parts_of(daemon: LocalDaemon, namespace: Namespace) -> Namespace | None:
    return daemon.store.namespace(parts_name(namespace.spec.name))


def part_keys(daemon: LocalDaemon, namespace: Namespace) -> list[bytes]:
    parts = parts_of(daemon, namespace)
    return [] if parts is None else sorted(parts.index)


async def make_bucket(daemon: LocalDaemon, name: str = "photos", mode: str = "") -> Namespace:
    return await daemon.service.door.open("default", wire.Open(0, name, wire.NamespaceKind.OBJECT, mode=mode))


def pieces_of(data: bytes, size: int = 100_000) -> Iterator[memoryview]:
    for start in range(0, len(data), size):
        yield memoryview(data)[start : start + size]


async def put_object(
    daemon: LocalDaemon,
    namespace: Namespace,
    key: bytes,
    data: bytes,
    attributes: ObjectAttributes | None = None,
    condition: PutCondition = ALWAYS,
) -> ObjectInfo:
    writer = await daemon.service.objects.writer(namespace, key, len(data), condition)
    try:
        for piece in pieces_of(data):
            await writer.write(piece)
        return await writer.finish(attributes or ObjectAttributes())
    finally:
        writer.abort()


async def put_part(daemon: LocalDaemon, namespace: Namespace, key: bytes, name: str, part: int, data: bytes) -> str:
    """Its ETag."""
    writer = await daemon.service.objects.uploads.part_writer(namespace, key, name, part, len(data))
    try:
        for piece in pieces_of(data):
            await writer.write(piece)
        return (await writer.finish()).row.etag
    finally:
        writer.abort()


async def taken(daemon: LocalDaemon, pieces: Pieces) -> bytes:
    found = bytearray()
    async for piece in pieces:
        found += daemon.store.view(piece.extent)[piece.start : piece.stop]
        daemon.store.drop(piece.extent)
    return bytes(found)


async def read(daemon: LocalDaemon, reader: ObjectReader, start: int = 0, stop: int | None = None) -> bytes:
    with reader:
        return await taken(daemon, reader.pieces(start, stop))


async def get_object(
    daemon: LocalDaemon, namespace: Namespace, key: bytes, start: int = 0, stop: int | None = None
) -> bytes:
    return await read(daemon, await daemon.service.objects.open(namespace, key), start, stop)


async def nothing_held(daemon: LocalDaemon) -> None:
    """No lease and no reservation is left, and the sweeper has nothing to do."""

    def quiet() -> bool:
        gc.collect()
        status = daemon.store.status().tiers[0]
        return not status.leased_bytes and not status.reserved_bytes and not daemon.service.objects.sweeper._gone

    await until(quiet)
