"""`tree`, `why`, `top` and `verify` against a real daemon: what they say of chains that branch, of misses, of a daemon that
goes and comes back."""

import io
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import WORDS, CommandLine
from daemon_process import DaemonProcess
from rich.console import Console
from rich.progress import Progress
from terminal import Terminal

from mooncask.client.control import ClientView, Flow, HotChain, Overview, TierView
from mooncask.client.control_client import ControlClient
from mooncask.client.hashing import chain
from mooncask.client.local import LocalClient
from mooncask.tools.top_screen import Room, bar, screen, share_lines
from mooncask.tools.verify import Check, Checked

FAMILY = {"model": "m", "dtype": "bfloat16", "block_tokens": "2"}
SHARED = [1, 2, 3, 4, 5, 6]
BLOCK_BYTES = 100_000


@dataclass(frozen=True)
class World:
    daemon: DaemonProcess
    command: CommandLine

    def put(self, name: str, tokens: list[int], **changed: str) -> list[str]:
        """The keys of a prompt that is stored, in hex."""
        with LocalClient.connect(self.daemon.socket_path) as client:
            namespace = client.open_namespace(name, {**FAMILY, **changed}, "tp 0/1")
            keys = chain(namespace.root(), tokens, 2)
            payloads = [os.urandom(BLOCK_BYTES) for _ in keys]
            parents, depths = [namespace.root(), *keys[:-1]], range(1, len(keys) + 1)
            client.put(namespace, keys, payloads, parents=parents, depths=depths, tokens=[2] * len(keys))
        return [key.hex() for key in keys]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Memory for 160 blocks, and nothing below it."""
    settings = {"dram.capacity": "16 MiB", "limits.block_max": "1 MiB", "nvme.path": ""}
    with tempfile.TemporaryDirectory(prefix="mc-") as folder, DaemonProcess.start(Path(folder), settings) as daemon:
        yield World(daemon, CommandLine(daemon.socket_path))


def ids(tokens: list[int]) -> str:
    return ",".join(map(str, tokens))


# --- tree ------------------------------------------------------------------------------------------------------------


def test_the_tree_shows_what_prompts_share_as_one_run_and_where_they_part(world: World) -> None:
    tips = [world.put("branches", [*SHARED, 10 + i, 10 + i, 20, 21])[-1] for i in range(3)]
    shared = world.put("branches", SHARED)[-1]
    found = world.command.json("tree", "branches")
    (run,) = found["runs"]
    assert (run["last"], run["blocks"], run["tokens"], run["size_bytes"]) == (shared, 3, 6, 3 * BLOCK_BYTES)
    assert {below["last"] for below in run["branches"]} == set(tips)
    assert [below["blocks"] for below in run["branches"]] == [2, 2, 2]
    shown = world.command.run("tree", "branches")
    assert "blocks 1-3" in shown and "6 tokens" in shown and "dram" in shown
    assert all(tip in shown for tip in tips)


def test_the_tree_from_a_block_on_shows_only_what_continues_it(world: World) -> None:
    keys = world.put("onward", SHARED)
    found = world.command.json("tree", "onward", keys[0])
    assert (found["runs"][0]["first"], found["runs"][0]["last"]) == (keys[1], keys[2])
    assert "nothing continues it" in world.command.run("tree", "onward", keys[2])
    assert "no block 00" in world.command.error("tree", "onward", "00" * 16, expect=3)


def test_what_a_limit_leaves_out_is_counted(world: World) -> None:
    for i in range(4):
        world.put("wide", [*SHARED, 30 + i, 30 + i, 1, 1])
    assert "4 branches more with 8 blocks" in world.command.run("tree", "wide", "--depth", "1")
    assert "2 branches more with 4 blocks" in world.command.run("tree", "wide", "--width", "2")
    assert "block 6" not in world.command.run("tree", "wide", "--blocks", "--depth", "3")


def test_a_namespace_of_objects_has_no_tree(world: World) -> None:
    world.command.run("put", "treeless", "k", "-", stdin=b"x")
    assert "form no chains" in world.command.error("tree", "treeless", expect=64)


# --- why -------------------------------------------------------------------------------------------------------------


def test_a_prompt_that_is_here_ends_with_0(world: World) -> None:
    world.put("whys-a", SHARED)
    assert "3 of 3 blocks hit (6 of 6 tokens)" in world.command.run("why", "whys-a", "--tokens", ids(SHARED))
    found = world.command.json("why", "whys-a", "--tokens", ids([*SHARED, 7]))
    assert (found["hit_blocks"], found["tail_tokens"], found["first_miss"]) == (3, 1, None)


def test_a_deleted_block_is_named_as_the_first_miss(world: World) -> None:
    keys = world.put("whys-b", SHARED)
    world.command.run("evict", "whys-b", keys[1])
    found = world.command.json("why", "whys-b", "--tokens", ids(SHARED), expect=1)
    miss = found["first_miss"]
    assert (miss["index"], miss["key"], miss["verdict"], found["later_hits"]) == (1, keys[1], "deleted", 1)
    result = world.command.spawn("why", "whys-b", "--keys", ",".join(keys), "--all")
    said = result.stdout.decode()
    assert result.returncode == 1
    assert "1 of 3 blocks hit" in said and f"first miss: block 1, key {keys[1]}" in said and "deleted at" in said
    assert "of no use without it: 1 later block" in said
    assert [line.split()[2] for line in said.splitlines() if line.split()[1:2] and line.split()[1] in keys] == [
        "hit",
        "deleted",
        "hit",
    ]


def test_a_prompt_that_another_family_has_is_found_there_by_the_field(world: World) -> None:
    world.put("whys-c", SHARED)
    world.put("whys-d", [9, 9], dtype="float16")
    said = world.command.spawn("why", "whys-d", "--tokens", ids(SHARED)).stdout.decode()
    assert "elsewhere: whys-c has 3 blocks" in said
    assert 'dtype: "float16" here, "bfloat16" there' in said and "never stored" in said


def test_an_evicted_block_is_told_with_its_tier_and_policy(world: World) -> None:
    world.put("whys-e", SHARED)
    for i in range(60):
        world.put("filler", [100 + i] * 8)
    found = world.command.json("why", "whys-e", "--tokens", ids(SHARED), expect=1)
    miss = found["first_miss"]
    assert (miss["verdict"], miss["tier"], miss["policy"]) == ("evicted", "dram", "lru")
    assert "evicted at" in world.command.spawn("why", "whys-e", "--tokens", ids(SHARED)).stdout.decode()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give the prompt"),
        (["--tokens", "1", "--keys", "00"], "give the prompt"),
        (["--keys", " , "], "no keys"),
        (["--text", "a"], "--tokenizer"),
    ],
)
def test_why_wants_one_prompt(world: World, words: list[str], said: str) -> None:
    assert said in world.command.error("why", "any", *words, expect=64)


# --- verify ----------------------------------------------------------------------------------------------------------


def test_verify_counts_a_block_that_left_after_it_was_listed_as_left(world: World) -> None:
    keys = world.put("leaving", SHARED)
    with (
        LocalClient.connect(world.daemon.socket_path) as client,
        ControlClient(world.daemon.socket_path) as control,
        Progress(disable=True) as progress,
    ):
        namespace = client.open_namespace("leaving", FAMILY, "tp 0/1")
        listed = client.list_blocks(namespace).blocks
        client.evict(namespace, [bytes.fromhex(keys[2])])
        result = Checked("leaving")
        Check(client, control, "", progress).batch(namespace, listed, result)
    assert (result.right, result.left, result.wrong) == (2, 1, [])


def test_verify_names_a_block_whose_bytes_changed(world: World) -> None:
    """One block is spoilt by a trusted writer's mapping and quarantined by the check."""
    with LocalClient.connect(world.daemon.socket_path) as client:
        namespace = client.open_namespace("spoilt", FAMILY, "tp 0/1")
        keys = [b"%016d" % i for i in range(3)]
        reservations = client.reserve(namespace, keys, [4096] * 3)
        views = [slot.numpy() for slot in reservations if slot is not None]
        reservations.commit()
        views[2][7] ^= 1
        del views
        (found,) = world.command.json("verify", "spoilt", "--tier", "dram", expect=65)
    assert (found["right"], found["left"]) == (2, 0)
    assert [block["key"] for block in found["wrong"]] == [keys[2].hex()]
    assert world.command.json("verify", "spoilt", "--tier", "nvme") == [
        {"namespace": "spoilt", "right": 0, "left": 0, "late": [], "wrong": []}
    ]


# --- top -------------------------------------------------------------------------------------------------------------


def test_one_frame_of_top_shows_tiers_flows_namespaces_and_clients(world: World) -> None:
    keys = world.put("watched", SHARED)
    with LocalClient.connect(world.daemon.socket_path, name="the watcher") as client:
        namespace = client.open_namespace("watched", FAMILY, "tp 0/1")
        with client.acquire(namespace, [bytes.fromhex(key) for key in keys]):
            said = world.command.run("top", "--once")
            found = world.command.json("top")
    assert "dram" in said and "%" in said and "lru" in said
    assert "put" in said and "hit" in said and "watched" in said and "the watcher" in said
    assert [client["leases"] for client in found["clients"] if client["name"] == "the watcher"] == [3]


def test_top_draws_waits_for_a_daemon_that_is_away_and_ends_with_q(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path, {"nvme.path": ""}) as daemon:
        environment = {"MOONCASK_SOCKET": daemon.socket_path}
        with Terminal([*WORDS, "top", "--interval", "0.2"], environment) as terminal:
            drawn = terminal.wait_for(lambda text: "dram" in text and "ready" in text)
            assert "64.0 MiB" in drawn
            daemon.kill()
            terminal.wait_for(lambda text: f"waiting for the daemon at {daemon.socket_path}" in text and "dram" in text)
            daemon.run()
            terminal.wait_for(lambda text: "ready" in text and "waiting" not in text)
            terminal.press("q")
            assert terminal.wait_end() == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_top_that_is_stopped_leaves_the_terminal_as_it_was(world: World, number: signal.Signals, status: int) -> None:
    with Terminal([*WORDS, "top"], world.command.environment) as terminal:
        before = terminal.settings
        terminal.wait_for(lambda text: "dram" in text)
        assert terminal.settings != before
        os.kill(terminal.process.pid, number)
        assert terminal.wait_end() == status
        assert terminal.settings == before and not terminal.full_screen


def overview(chains: int = 0) -> Overview:
    return Overview(
        node="n",
        version="1",
        ready=True,
        time_seconds=0,
        uptime_seconds=90,
        window_seconds=10,
        tiers=[tier("dram", 97), tier("nvme", 10)],
        flows=[
            Flow(kind="evict", tier="nvme", total_bytes=5, rate_bytes=0, total=1, rate=0),
            Flow(kind="hit", tier="dram", total_bytes=1 << 30, rate_bytes=1 << 20, total=9, rate=2),
            Flow(kind="promote", tier="dram", total_bytes=0, rate_bytes=0, total=0, rate=0),
        ],
        namespaces=[],
        hot_chains=[
            HotChain(namespace="ns", key=f"{i:032x}", depth=i, tokens=i, size_bytes=i, hits=i, rate=i, tiers=["dram"])
            for i in range(chains)
        ],
        clients=[
            ClientView(
                pid=1, uid=0, name="a\x1b[31m", tenant="t", connections=1, leases=2, leased_bytes=3, reservations=0
            )
        ],
        waiting_for_room=4,
    )


def tier(name: str, used: int) -> TierView:
    return TierView(
        tier=name,
        capacity_bytes=100,
        used_bytes=used,
        blocks=3,
        pinned_bytes=0,
        leased_bytes=0,
        reserved_bytes=0,
        policy="lru",
        state="ok",
    )


def drawn(found: Overview, room: Room) -> str:
    console = Console(width=room.width, record=True, file=io.StringIO())
    console.print(screen(found, room))
    return console.export_text()


def test_a_frame_shows_flows_that_moved_and_no_control_characters() -> None:
    text = drawn(overview(), Room(160))
    assert "1.0 MiB/s" in text and "promote" not in text and "4 waiting for room" in text
    assert text.index("hit ") < text.index("evict")
    assert "\x1b" not in text and "\\x1b[31m" in text


def test_the_hottest_chains_come_first_and_are_cut_to_the_terminal() -> None:
    text = drawn(overview(chains=50), Room(120, lines=30))
    assert len(text.splitlines()) <= 30
    assert f"{49:032x}"[:12] in text and "49.0" in text and " 3.0 " not in text
    whole = drawn(overview(chains=50), Room(120, whole_keys=True))
    assert all(f"{i:032x}" in whole for i in range(50))


def test_a_narrow_terminal_leaves_out_what_is_held() -> None:
    assert "reserved" in drawn(overview(), Room(120)) and "reserved" not in drawn(overview(), Room(80)).split("flow")[0]


@pytest.mark.parametrize(
    ("full", "cells", "style"), [(0.0, 0, "dim"), (0.001, 1, "green"), (0.85, 17, "yellow"), (1.2, 20, "red")]
)
def test_a_bar_is_as_long_as_the_tier_is_full(full: float, cells: int, style: str) -> None:
    drawn_bar = bar(full)
    assert drawn_bar.plain.count("█") == cells and len(drawn_bar.plain.split(" ")[0]) == 20
    assert str(drawn_bar.spans[0].style) == style


def test_lists_share_the_lines_and_give_up_what_they_do_not_need() -> None:
    assert share_lines([10, 10], 6) == [3, 3]
    assert share_lines([1, 10], 6) == [1, 5]
    assert share_lines([2, 3], 99) == [2, 3]
    assert share_lines([5], -3) == [0]
