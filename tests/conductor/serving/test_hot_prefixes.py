"""Prefixes that many read are copied to other nodes: by two real daemons in a cluster, and what bounds it."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from cluster_nodes import ClusterNodes, Node
from scripted_answers import right_answer
from scripted_worker import ScriptedWorker

from mooncask.client import control
from mooncask.client.hashing import root
from mooncask.client.prompt_keys import prompt_keys
from mooncask.client.socket_path import http_socket_path
from mooncask.client.worker_api import Hashing, Role, Sampling
from mooncask.client.worker_api import Node as NodeName
from mooncask.conductor.scheduling.facts import Slo
from mooncask.conductor.serving.dispatch.dispatcher import Limits, LiveDispatcher
from mooncask.conductor.serving.dispatch.hot_prefixes import HotPrefixes, Place
from mooncask.conductor.serving.dispatch.policy_table import PolicySettings, PolicyTable
from mooncask.conductor.serving.dispatch.pools import Pools
from mooncask.conductor.serving.dispatch.prefixes import Prefixes
from mooncask.conductor.serving.dispatch.worker_client import WorkerClient
from mooncask.conductor.serving.job import Job, Piece
from mooncask.conductor.serving.main import listening
from mooncask.conductor.serving.pages.rows import hot_rows
from mooncask.conductor.serving.workers_door import WorkersDoor
from mooncask.errors import PeerUnavailable

SECRET = "hot"
BLOCK_BYTES = 4096
DOCUMENT = [7 + i % 300 for i in range(16 * 40)]


def hashing_of(node: Node) -> Hashing:
    opened = node.namespace()
    return Hashing(
        namespace=opened.name,
        fingerprint=opened.fingerprint.hex(),
        tenant_salt=opened.opened.salt.hex(),
        hash=opened.hash,
        block_tokens=16,
        block_bytes=BLOCK_BYTES,
    )


def keys_of(told: Hashing, tokens: list[int]) -> list[bytes]:
    fingerprint, salt = bytes.fromhex(told.fingerprint), bytes.fromhex(told.tenant_salt)
    return prompt_keys(lambda extra: root(fingerprint, salt + extra, told.hash), tokens, 16, "", 0, told.hash)


def test_a_document_that_many_ask_about_comes_to_the_other_node(tmp_path: Path) -> None:
    with ClusterNodes(tmp_path) as nodes:
        one, two = nodes.start("n1", "n2")
        told = hashing_of(one)
        keys = keys_of(told, DOCUMENT)
        one.put({key: bytes([i]) * BLOCK_BYTES for i, key in enumerate(keys)})
        assert two.namespace().name == told.namespace
        copied = asyncio.run(ask_many([one, two], told))
        assert copied == 32  # the longest of 8, 16 and 32 blocks of 40
        held = two.get(keys[:32])
        assert held == [bytes([i]) * BLOCK_BYTES for i in range(32)]


async def ask_many(nodes: list[Node], told: Hashing) -> int:
    """Asks until a copy was made: how many of its blocks the other node then has by itself."""
    pools, client, prefixes = Pools(), WorkerClient(SECRET), Prefixes(2.0)
    table = PolicyTable(PolicySettings("kvcache-centric", "none", 1.0, 1.5, {"all": Slo(9.0, 1.0)}, "all"))
    limits = Limits(inline_tokens=0, hot_busy_share=1e-7)
    dispatcher = LiveDispatcher(pools, client, prefixes, table, limits)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        stack.push_async_callback(prefixes.close)
        stack.push_async_callback(dispatcher.hot.close)
        door = WorkersDoor(pools, SECRET).application()
        address = await stack.enter_async_context(listening(door, "127.0.0.1:0", "workers"))
        for i, node in enumerate(nodes):
            place = NodeName(name=node.name, pages=f"unix:{http_socket_path(node.daemon.socket_path)}")
            for role in (Role.PREFILL, Role.DECODE):
                worker = ScriptedWorker(
                    f"http://{address}", SECRET, f"{role}-{i}", role, hashing=told, node=place, slots=8
                )
                await stack.enter_async_context(worker.serving())
        deadline, number = time.monotonic() + 20, 0
        while not dispatcher.hot.copies:
            assert time.monotonic() < deadline, "no copy was made"
            number += 1
            question = [301 + number % 20] * 40
            job = Job(f"q{number}", "scripted", DOCUMENT + question, 2, Sampling(), received_seconds=time.monotonic())
            events = [event async for event in dispatcher.run(job)]
            said = [token for event in events if isinstance(event, Piece) for token in event.tokens]
            assert said == right_answer(job.tokens, 2)
        [copy] = dispatcher.hot.copies
        assert (copy.source, copy.target, copy.failure) == ("n1", "n2", "")
        hottest = hot_rows(dispatcher)[0]
        assert "n1" in hottest.nodes
        assert hottest.reads_per_second > 0
        keys = keys_of(told, DOCUMENT)
        places = [w.registration.node for w in pools.all()]
        held = await prefixes.held(places, told, keys)
        return held["n2"].now


class Copying:
    """Copies when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []
        self.go = asyncio.Event()
        self.fails = False

    async def replicate(
        self, source: NodeName, target: str, hashing: Hashing, keys: Sequence[bytes], seconds: float
    ) -> control.Replicated:
        self.asked.append((source.name, target, len(keys)))
        await self.go.wait()
        if self.fails:
            raise PeerUnavailable(source.name, "gone")
        return control.Replicated(target, len(keys), copied=len(keys))


TOLD = Hashing(namespace="n", fingerprint="", tenant_salt="", hash="", block_tokens=16, block_bytes=64)


def places(*held: int) -> list[Place]:
    return [Place(NodeName(name=f"n{i}", pages="unix:x"), blocks, float(i)) for i, blocks in enumerate(held)]


def chain(number: int, blocks: int) -> list[bytes]:
    return [block.to_bytes(4, "big") + bytes([number]) * 12 for block in range(blocks)]


async def test_so_many_copies_at_a_time_and_none_twice() -> None:
    copying = Copying()
    hot = HotPrefixes(copying, copies_max=2, busy_share=1e-9)
    for _ in range(5):
        for number in range(4):
            hot.read("m", TOLD, chain(number, 20), places(20, 0), 0.001)
    await asyncio.sleep(0)
    assert copying.asked == [("n0", "n1", 16), ("n0", "n1", 16)]
    copying.go.set()
    await until(lambda: len(hot.copies) == 2)
    for number in range(2):
        hot.read("m", TOLD, chain(number, 20), places(20, 0), 0.001)
    await asyncio.sleep(0)
    # Of a chain that was copied just now only the shorter beginning is left to ask for, and that is there too: not asked.
    assert [blocks for *_, blocks in copying.asked] == [16, 16]
    await hot.close()


async def test_cold_chains_and_those_that_all_or_none_have_are_not_copied() -> None:
    copying = Copying()
    hot = HotPrefixes(copying, copies_max=2, busy_share=0.3)
    hot.read("m", TOLD, chain(1, 20), places(20, 0), 0.001)  # 70 ms of a link a second at most
    hot.read("m", TOLD, chain(2, 20), places(20, 20), 10.0)
    hot.read("m", TOLD, chain(3, 20), places(0, 0), 10.0)
    hot.read("m", TOLD, chain(4, 20), places(20), 10.0)
    HotPrefixes(copying, 0, 1e-9).read("m", TOLD, chain(5, 20), places(20, 0), 10.0)
    await asyncio.sleep(0)
    assert not copying.asked


async def test_a_copy_that_fails_is_told_and_the_request_hears_nothing_of_it() -> None:
    copying = Copying()
    copying.fails = True
    copying.go.set()
    hot = HotPrefixes(copying, copies_max=1, busy_share=1e-9)
    hot.read("m", TOLD, chain(1, 20), places(20, 0), 0.001)
    await until(lambda: bool(hot.copies))
    assert "gone" in hot.copies[0].failure
    await hot.close()


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("blocks", [0, 7])
async def test_short_prompts_are_no_hot_prefixes(blocks: int) -> None:
    hot = HotPrefixes(Copying(), 1, 1e-9)
    hot.read("m", TOLD, chain(1, blocks), places(blocks, 0), 1.0)
    assert not hot.rows()
