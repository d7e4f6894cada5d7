"""Whatever arrives, the daemon answers it or closes that connection: never a fault of its own, never a hang."""

import asyncio
import logging
import types
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from local_daemon import running_daemon
from raw_client import RawClient, key, payload

from mooncask.client import wire

BATCHES = 60
INTEGERS = st.one_of(st.integers(-(1 << 63), (1 << 64) - 1), st.integers(-2, 5), st.sampled_from([1 << 31, 1 << 32]))
KEYS = st.one_of(st.sampled_from([key(0), key(1), key(2), b""]), st.binary(max_size=20))
REQUESTS = [kind for kind in typing.get_args(wire.Request) if kind is not wire.Hello]


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values that decode as `kind`, sensible or not."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return st.lists(values(arguments[0]), max_size=4)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values, arguments))
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: INTEGERS,
        float: st.floats(),
        bytes: KEYS,
        bool: st.booleans(),
        str: st.one_of(st.sampled_from(["", "kv-test", "model", "sha256", "memory"]), st.text(max_size=8)),
        type(None): st.none(),
        wire.NamespaceKind: st.sampled_from(list(wire.NamespaceKind)),
        wire.HintFields: st.builds(wire.HintFields, priority=INTEGERS, conversation=INTEGERS, turn=INTEGERS),
    }
    return simple[kind]


def requests(kind: type[wire.Message]) -> st.SearchStrategy[wire.Message]:
    fields = {field.name: values(field.type) for field in msgspec.structs.fields(kind) if field.name != "id"}
    # Deadlines of 2^63 ms are cut to limits.*_deadline_max, which the test sets low.
    return st.builds(kind, id=st.integers(0, 3).map(lambda number: number and number + 1000), **fields)


def collected(count: int) -> list[list[wire.Message]]:
    """Batches of requests, the same each time: drawn beforehand, since hypothesis and a loop do not mix."""
    found: list[list[wire.Message]] = []

    @seed(9470)
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.one_of(*map(requests, REQUESTS)), min_size=10, max_size=40))
    def draw(batch: list[wire.Message]) -> None:
        found.append(batch)

    draw()
    return found


async def test_any_request_of_any_values_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    encoder = msgspec.msgpack.Encoder()
    limits = {"limits.acquire_deadline_max": "50ms", "limits.reserve_deadline_max": "50ms"}
    async with running_daemon(limits) as daemon:
        watcher = await daemon.client()
        namespace = await watcher.open()
        await watcher.put(namespace, {key(0): payload(0)})
        for batch in collected(BATCHES):
            client = await daemon.client()
            assert await client.open() == namespace
            frames = [wire.frame(encoder, _at(namespace, message)) for message in batch]
            client.send_raw(b"".join(frames))
            await _still_answers(client)
            await client.close()
        await _still_answers(watcher)
        assert daemon.plane.counters["frames_malformed"] == 0, "each of them decodes"
        await watcher.close()
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []


async def test_any_bytes_are_refused_or_answered(caplog: pytest.LogCaptureFixture) -> None:
    found: list[bytes] = []

    @seed(9470)
    @settings(max_examples=150, database=None, deadline=None)
    @given(st.binary(max_size=200))
    def draw(data: bytes) -> None:
        found.append(data)

    draw()
    async with running_daemon() as daemon:
        watcher = await daemon.client()
        for data in found:
            client = await daemon.client()
            client.send_raw(wire.HEADER.pack(len(data)) + data)
            await client.closed_by_daemon()
            await client.close()
        await _still_answers(watcher)
        assert daemon.plane.counters["frames_malformed"] == len(found)
        await watcher.close()
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []


def _at(namespace: int, message: wire.Message) -> wire.Message:
    """Half of the requests name the namespace that is open."""
    if hasattr(message, "namespace") and message.namespace % 2 == 0:
        return msgspec.structs.replace(message, namespace=namespace)
    return message


async def _still_answers(client: RawClient) -> None:
    async with asyncio.timeout(10):
        assert await client.ask(wire.Status, wire.Stat)
