"""`evict`, `pin`, `unpin`, `ttl` and `ls` in its long form, against a real daemon with a chain of KV blocks."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import CommandLine
from daemon_process import DaemonProcess

from mooncask.client.hashing import chain
from mooncask.client.local import LocalClient

FAMILY = {"model": "m", "block_tokens": "2"}


@dataclass(frozen=True)
class World:
    daemon: DaemonProcess
    command: CommandLine

    def put_chain(self, name: str, blocks: int = 5) -> list[str]:
        """A chain of blocks in a new namespace; its keys in hex, first to last."""
        with LocalClient.connect(self.daemon.socket_path) as client:
            namespace = client.open_namespace(name, FAMILY, "tp 0/1")
            keys = chain(namespace.root(), list(range(2 * blocks)), 2)
            client.put(
                namespace,
                keys,
                [bytes([i]) * (1000 + i) for i in range(blocks)],
                parents=[namespace.root(), *keys[:-1]],
                depths=range(1, blocks + 1),
                tokens=[2] * blocks,
            )
        return [key.hex() for key in keys]

    def listed(self, name: str) -> list[str]:
        return [block["key"] for block in self.command.json("ls", name)["blocks"]]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="mc-") as folder, DaemonProcess.start(Path(folder)) as daemon:
        yield World(daemon, CommandLine(daemon.socket_path))


def test_a_pinned_chain_is_pinned_from_its_first_block_to_the_key(world: World) -> None:
    keys = world.put_chain("pins-a")
    assert world.command.json("pin", "pins-a", keys[2], "--chain") == {
        "namespace": "pins-a",
        "pinned": 3,
        "missing": [],
    }
    assert [world.command.json("stat", "pins-a", key)["pins"] for key in keys] == [1, 1, 1, 0, 0]
    assert "3 blocks unpinned" in world.command.run("unpin", "pins-a", keys[2], "--chain")
    assert world.command.json("stat", "pins-a", keys[0])["pins"] == 0


def test_a_chain_ends_where_a_block_is_missing(world: World) -> None:
    keys = world.put_chain("pins-b")
    world.command.run("evict", "pins-b", keys[1])
    assert world.command.json("pin", "pins-b", keys[4], "--chain")["pinned"] == 3


def test_pinning_what_is_not_here_names_it_and_pins_the_rest(world: World) -> None:
    keys = world.put_chain("pins-c")
    absent = "00" * 16
    assert absent in world.command.error("pin", "pins-c", keys[0], absent, expect=3)
    assert world.command.json("stat", "pins-c", keys[0])["pins"] == 1


def test_a_time_to_live_is_set_shown_and_taken_back(world: World) -> None:
    keys = world.put_chain("ttls")
    assert "vanish in 2 h" in world.command.run("ttl", "ttls", keys[0], "--for", "2h")
    (shown,) = world.command.json("ttl", "ttls", keys[0])["blocks"]
    assert 7100 < shown["ttl_seconds"] <= 7200
    assert "1 h 59 min" in world.command.run("ttl", "ttls", keys[0])
    world.command.run("ttl", "ttls", keys[0], "--never")
    assert world.command.json("stat", "ttls", keys[0])["ttl_seconds"] == 0


@pytest.mark.parametrize("time", ["soon", "-5s", "3 weeks", "0"])
def test_a_time_that_is_none_is_refused_by_what_would_be_one(world: World, time: str) -> None:
    assert "such as 90s or 2h" in world.command.error("ttl", "any", "k", f"--for={time}", expect=64)


def test_evicting_a_chain_takes_its_blocks_and_leaves_what_continues_it(world: World) -> None:
    keys = world.put_chain("gone-a")
    assert world.command.json("evict", "gone-a", keys[2], "--chain")["deleted"] == 3
    assert sorted(world.listed("gone-a")) == sorted(keys[3:])


def test_evicting_a_prefix_asks_first_and_does_nothing_unasked(world: World) -> None:
    keys = world.put_chain("gone-b")
    said = world.command.error("evict", "gone-b", "--prefix", keys[0][:3], expect=64)
    assert "would delete 1 block" in said and "--yes" in said
    assert len(world.listed("gone-b")) == 5
    assert world.command.json("evict", "gone-b", "--prefix", keys[0][:3], "--yes")["deleted"] == 1
    assert sorted(world.listed("gone-b")) == sorted(keys[1:])
    assert world.command.json("evict", "gone-b", "--prefix", "", "--yes")["deleted"] == 4


def test_evict_wants_either_keys_or_a_prefix(world: World) -> None:
    for words in (["evict", "x"], ["evict", "x", "k", "--prefix", "k"]):
        assert "either keys or --prefix" in world.command.error(*words, expect=64)


def test_rm_is_evict(world: World) -> None:
    keys = world.put_chain("gone-c")
    assert world.command.json("rm", "gone-c", keys[4])["deleted"] == 1


def test_ls_takes_a_prefix_of_any_length_and_sorts_as_asked(world: World) -> None:
    keys = world.put_chain("sorts")
    for length in (1, 2, 5, 32):
        found = world.command.json("ls", "sorts", keys[3][:length])["blocks"]
        assert keys[3] in [block["key"] for block in found]
        assert all(block["key"].startswith(keys[3][:length]) for block in found)
    largest = world.command.json("ls", "sorts", "--sort", "size", "--limit", "2")
    assert ([block["key"] for block in largest["blocks"]], largest["more"]) == ([keys[4], keys[3]], True)
    with LocalClient.connect(world.daemon.socket_path) as client:
        namespace = client.open_namespace("sorts", FAMILY, "tp 0/1", create=False)
        client.acquire(namespace, [bytes.fromhex(keys[1])]).close()
    assert world.command.json("ls", "sorts", "--sort", "hits", "--limit", "1")["blocks"][0]["key"] == keys[1]


def test_the_long_form_of_ls_shows_parent_depth_and_checksum(world: World) -> None:
    keys = world.put_chain("longs")
    shown = world.command.run("ls", "longs", "-l")
    checksum = world.command.json("stat", "longs", keys[1])["checksum"]
    (row,) = [line.split() for line in shown.splitlines() if line.startswith(keys[1])]
    assert keys[0] in row and checksum in row and "2" in row


def test_stat_of_a_namespace_shows_its_family(world: World) -> None:
    world.put_chain("shown")
    assert world.command.json("stat", "shown")["family"] == FAMILY
    assert "family.block_tokens" in world.command.run("stat", "shown")


def test_a_namespace_hashed_with_xxh3_is_opened_as_well(world: World) -> None:
    with LocalClient.connect(world.daemon.socket_path) as client:
        namespace = client.open_namespace("fast-hash", FAMILY, hash="xxh3_128")
        (key,) = chain(namespace.root(), [1, 2], 2, hash="xxh3_128")
        client.put(namespace, [key], [b"payload"])
    assert world.command.run("get", "fast-hash", key.hex()) == "payload"
    assert world.command.json("hash", "fast-hash", "--tokens", "1,2")["keys"] == [key.hex()]
