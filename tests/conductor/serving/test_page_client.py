"""Asking a node's pages: over a connection that is kept, one that was closed meanwhile, and one that answers nonsense."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from mooncask.client.worker_api import Hashing, Node
from mooncask.conductor.serving.dispatch.page_client import PageClient, PageUnreadable
from mooncask.conductor.serving.dispatch.prefixes import Held, Prefixes

HASHING = Hashing(
    namespace="kv-1", fingerprint="00" * 16, tenant_salt="", hash="sha256", block_tokens=16, block_bytes=1024
)
KEYS = [bytes([i]) * 16 for i in range(4)]
MATCHED = (
    b'{"namespace":"kv-1","blocks":4,"block_tokens":16,"hit_blocks":3,"hit_tokens":48,'
    b'"tiers":["dram","nvme","peer"],"seconds":[0.1,0.2,0.3]}'
)
Answerer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answer(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def pages(says: bytes, answers_each: int = 1 << 30) -> AsyncIterator[tuple[str, list[int]]]:
    """A page that says the same to everybody; each connection ends after so many answers. Tells how many had come on each."""
    counts: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counts.append(0)
        number = len(counts) - 1
        try:
            while counts[number] < answers_each:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                counts[number] += 1
                writer.write(says)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", counts


async def test_a_connection_is_kept_for_the_next_question() -> None:
    async with pages(answer(b"{}")) as (where, counts):
        client = PageClient(where, {})
        for _ in range(3):
            assert (await client.post("/-/v1/match", b"{}")).body == b"{}"
        assert counts == [3]
        client.close()


async def test_one_that_was_closed_meanwhile_is_replaced() -> None:
    async with pages(answer(b"{}"), answers_each=1) as (where, counts):
        client = PageClient(where, {})
        for _ in range(3):
            assert (await client.post("/-/v1/match", b"{}")).status == 200
        assert counts == [1, 1, 1]
        client.close()


@pytest.mark.parametrize(
    "says",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n",
    ],
)
async def test_what_is_no_answer_is_refused_and_its_connection_closed(says: bytes) -> None:
    async with pages(says) as (where, counts):
        client = PageClient(where, {})
        for _ in range(2):
            with pytest.raises(PageUnreadable):
                await client.post("/-/v1/match", b"{}")
        assert counts == [1, 1]
        client.close()


async def test_a_node_counts_with_what_it_holds_itself_and_one_that_is_late_gone_or_unreadable_with_nothing() -> None:
    async with pages(answer(MATCHED)) as (good, _), pages(b"") as (silent, _), pages(b"nonsense\r\n\r\n") as (bad, _):
        prefixes = Prefixes(0.2)
        told = {"good": good, "silent": silent, "bad": bad, "gone": "http://127.0.0.1:1", "none": ""}
        nodes = [Node(name=name, pages=where) for name, where in told.items()]
        held = await prefixes.held(nodes, HASHING, KEYS)
        await prefixes.close()
    assert held == {"good": Held(2, 2)} | dict.fromkeys(("silent", "bad", "gone", "none"), Held(0, 0))
    assert prefixes.unanswered == 3


async def test_a_namespace_that_a_node_does_not_have_yet_is_an_answer() -> None:
    async with pages(answer(b'{"error":"no such namespace"}', "404 Not Found")) as (where, _):
        prefixes = Prefixes(5.0)
        assert await prefixes.held([Node(name="n1", pages=where)], HASHING, KEYS) == {"n1": Held(0, 0)}
        await prefixes.close()
    assert prefixes.unanswered == 0
