"""Where blocks are among nodes, and how another one lost them: `ls --where`, `why`, and the words that tell it."""

import time
from pathlib import Path

import pytest
from cluster_nodes import ClusterNodes, blocks_of, eventually, free_port
from command_line import CommandLine
from directory_server import DirectoryServer

from mooncask.daemon.insight.verdicts import clock_text
from mooncask.daemon.peers.whereabouts import FromNode, Told, in_words

NOW = 1_700_000_000.0


# --- in words --------------------------------------------------------------------------------------------------------


def test_who_has_a_block_is_named_with_its_tiers() -> None:
    found = [FromNode("n1", [Told(["dram", "nvme"], "hit")]), FromNode("n2", [Told(["dram"], "hit")])]
    assert in_words(found, NOW) == (
        "n1 has it in dram and nvme, n2 has it in dram, and gives it to whoever acquires it"
    )


def test_who_had_a_block_is_named_with_the_time_by_this_nodes_clock_and_the_reason() -> None:
    found = [
        FromNode("n1", [Told([], "never_stored")]),
        FromNode("n2", [Told([], "evicted", 90.0, "dram", "lru")]),
        FromNode("n3", [Told([], "deleted", 10.0, "dram")]),
    ]
    assert in_words(found, NOW) == (
        f"no other node has it; held by n3 until {clock_text(NOW - 10, NOW)}, deleted there; "
        f"held by n2 until {clock_text(NOW - 90, NOW)}, evicted there by lru"
    )


def test_a_node_that_does_not_answer_is_named() -> None:
    assert in_words([FromNode("n1", None)], NOW) == "no other node that answered has it; n1 did not answer in time"
    assert in_words([], NOW) == ""


@pytest.mark.parametrize(
    "told", [Told(), Told([], "evicted", -1.0), Told(["dram"] * 0, "a verdict of a later version", 3.0)]
)
def test_what_is_not_understood_is_not_told(told: Told) -> None:
    assert in_words([FromNode("n1", [told])], NOW) == "no other node has it"


# --- among nodes -----------------------------------------------------------------------------------------------------


def test_ls_tells_which_nodes_have_each_block_and_names_those_that_do_not_answer(tmp_path: Path) -> None:
    with ClusterNodes(tmp_path) as nodes:
        one, two, three = nodes.start("n1", "n2", "n3")
        blocks = blocks_of(range(1, 4))
        first, second, third = blocks
        one.put(blocks)
        assert two.get([first, second]) == [blocks[first], blocks[second]]
        three.namespace()
        name = one.client.status().namespaces[0].name
        command = CommandLine(one.daemon.socket_path)

        def told() -> dict[bytes, dict[str, list[str]]]:
            page = command.json("ls", name, "--where")
            assert page["silent"] == []
            return {bytes.fromhex(block["key"]): block["nodes"] for block in page["blocks"]}

        both = ["dram", "nvme"]  # once they are written down
        expected = {first: {"n1": both, "n2": both}, second: {"n1": both, "n2": both}, third: {"n1": both}}
        eventually(lambda: told() == expected)
        assert "n1 dram nvme, n2 dram nvme" in command.run("ls", name, "--where")
        two.daemon.freeze()
        try:
            began = time.monotonic()
            text = command.run("ls", name, "--where")
            assert time.monotonic() - began < 8.0
        finally:
            two.daemon.thaw()
        assert "no answer from n2" in text and "n2 dram" not in text


def test_a_node_that_is_alone_has_its_blocks_itself(tmp_path: Path) -> None:
    with ClusterNodes(tmp_path) as nodes:
        [one] = nodes.start("n1", peers=[f"127.0.0.1:{free_port()}"])
        one.put(blocks_of([1]))
        name = one.client.status().namespaces[0].name
        [block] = CommandLine(one.daemon.socket_path).json("ls", name, "--where")["blocks"]
        assert list(block["nodes"]) == ["n1"] and "dram" in block["nodes"]["n1"]


def test_why_tells_until_when_another_node_held_a_block_and_how_it_lost_it(tmp_path: Path) -> None:
    with DirectoryServer(tmp_path) as server, ClusterNodes(tmp_path, directory=server.url) as nodes:
        one, two = nodes.start("n1", "n2")
        blocks = blocks_of([1])
        [key] = blocks
        one.namespace(), two.namespace()
        two.put(blocks)
        name = one.client.status().namespaces[0].name
        command = CommandLine(one.daemon.socket_path)

        def told() -> str:
            text: str = command.json("why", name, "--keys", key.hex(), expect=1)["first_miss"]["text"]
            return text

        eventually(lambda: "n2 has it in dram and nvme, and gives it to whoever acquires it" in told())
        two.client.evict(two.namespace(), [key])
        eventually(lambda: "no other node has it; held by n2 until " in told())
        assert "deleted there" in told()
