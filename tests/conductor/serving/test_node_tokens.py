"""Daemons that demand their `http.admin_token` are asked what they hold, and to hold it, over TCP with the configured token."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from control_pages import PagesOf, open_kv, running_pages
from raw_client import key

from mooncask.client.worker_api import Hashing, Node
from mooncask.conductor.serving.caching.holding import NodeHolds
from mooncask.conductor.serving.caching.records import Place
from mooncask.conductor.serving.config import load_config
from mooncask.conductor.serving.dispatch.node_tokens import NodeTokens
from mooncask.conductor.serving.dispatch.prefixes import Held, Prefixes
from mooncask.conductor.serving.node_access import node_tokens
from mooncask.errors import ConfigError, PeerUnavailable

TOKEN = "a-token-for-pages"
KEYS = [key(1), key(2), key(3)]
HASHING = Hashing(
    namespace="kv-a", fingerprint="00" * 16, tenant_salt="", hash="sha256", block_tokens=16, block_bytes=1024
)


@asynccontextmanager
async def guarded() -> AsyncIterator[tuple[PagesOf, str]]:
    """A daemon that demands a token and holds the first two blocks; where its pages are."""
    async with running_pages({"http.admin_token": TOKEN}) as pages:
        await pages.put_chain(await open_kv(pages.client, "kv-a"), KEYS[:2])
        assert pages.daemon.http is not None
        yield pages, f"http://{pages.daemon.http.address}"


async def held(tokens: NodeTokens, where: str) -> tuple[Held, int]:
    """What node n1 is taken to hold, and how often it was not asked with success."""
    prefixes = Prefixes(5.0, tokens)
    found = [(await prefixes.held([Node(name="n1", pages=where)], HASHING, KEYS))["n1"] for _ in range(2)]
    await prefixes.close()
    return found[1], prefixes.unanswered


async def test_a_node_that_demands_a_token_is_asked_with_that_of_its_section(caplog: pytest.LogCaptureFixture) -> None:
    async with guarded() as (_, where):
        with caplog.at_level(logging.DEBUG):
            assert await held(NodeTokens({"n1": TOKEN}), where) == (Held(2, 2), 0)
            assert await held(NodeTokens({"n2": "another"}, TOKEN), where) == (Held(2, 2), 0)
        assert TOKEN not in caplog.text


async def test_without_it_the_node_holds_nothing_and_it_is_said_once_why(caplog: pytest.LogCaptureFixture) -> None:
    async with guarded() as (_, where):
        for tokens in (NodeTokens(), NodeTokens({"n1": "wrong"}, TOKEN)):
            caplog.clear()
            assert await held(tokens, where) == (Held(0, 0), 2)
            [said] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
            assert "node n1 refuses" in said and "http.admin_token" in said and "[nodes.n1]" in said
            assert "wrong" not in caplog.text
    caplog.clear()


async def test_blocks_of_a_cache_are_held_there_with_the_token_and_not_without() -> None:
    async with guarded() as (_, where):
        place, keys = Place("n1", where, "kv-a"), [one.hex() for one in KEYS]
        right, none = NodeHolds(0.5, NodeTokens({}, TOKEN)), NodeHolds(0.5)
        try:
            assert await right.hold(place, "c1", keys, 60.0) == 1
            with pytest.raises(PeerUnavailable, match=r"http\.admin_token.*\[nodes\.n1\]"):
                await none.hold(place, "c1", keys, 60.0)
        finally:
            await right.close()
            await none.close()


def test_a_token_on_a_unix_socket_is_not_shown() -> None:
    assert NodeTokens({}, TOKEN).headers("n1", "unix:/run/x") == {}
    assert TOKEN not in repr(NodeTokens({"n": TOKEN}, TOKEN))


def test_tokens_come_from_files_one_for_all_or_one_for_a_node(tmp_path: Path) -> None:
    for name in ("all", "one"):
        (tmp_path / name).write_text(f"token-{name}\n")
    config = tmp_path / "conductor.toml"
    config.write_text(f"""
[nodes.default]
admin_token_file = "{tmp_path}/all"
[nodes.gpu-1]
admin_token_file = "{tmp_path}/one"
[nodes.gpu-2]
admin_token = ""
""")
    tokens = node_tokens(load_config(config, {}).nodes)
    shown = [tokens.headers(name, "http://h:1").get("Authorization") for name in ("gpu-1", "gpu-2", "gpu-3")]
    assert shown == ["Bearer token-one", None, "Bearer token-all"]
    (tmp_path / "one").write_text("two\nlines")
    with pytest.raises(ConfigError, match=r"nodes\.gpu-1\.admin_token.*not shown"):
        node_tokens(load_config(config, {}).nodes)
    (tmp_path / "one").unlink()
    with pytest.raises(ConfigError, match=r"nodes\.gpu-1\.admin_token_file"):
        node_tokens(load_config(config, {}).nodes)
