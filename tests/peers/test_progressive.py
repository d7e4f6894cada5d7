"""Blocks that are being written at one node and waited for at another: what is written comes at once, and nothing but what is
committed is ever served."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cluster_nodes import ClusterNodes, Node, eventually
from directory_server import DirectoryServer
from layer_writer import SIZE, LayerWriter, Waiting, key_of, payload_of, writing_process

from mooncask.client.wire import Tier

AT_ONCE_SECONDS = 3.0
"""Far less than the deadlines here, and enough for a machine that does other things too."""


class Three:
    """Nodes that all tests here share, each with keys of its own; what is counted is counted since the test began."""

    def __init__(self, nodes: list[Node]) -> None:
        self.one, self.two, self.three = nodes
        self._numbers = itertools.count(1)
        self._before: dict[str, dict[str, int]] = {}

    def begin(self) -> None:
        for node in (self.one, self.two, self.three):
            self._before[node.name] = {**node.counters(), **self._received(node)}

    def numbers(self, count: int) -> list[int]:
        return [next(self._numbers) for _ in range(count)]

    def count(self, node: Node, counter: str) -> int:
        return node.counters().get(counter, 0) - self._before[node.name].get(counter, 0)

    def until(self, node: Node, counter: str, count: int) -> None:
        eventually(lambda: self.count(node, counter) >= count)

    def received(self, node: Node, origin: Node) -> int:
        name = f"from {origin.name}"
        return self._received(node).get(name, 0) - self._before[node.name].get(name, 0)

    def _received(self, node: Node) -> dict[str, int]:
        return {f"from {peer.name}": peer.bytes_received for peer in node.peers().peers}

    def assert_nothing_is_left(self) -> None:
        for node in (self.one, self.two, self.three):
            assert_nothing_is_left(node)


@pytest.fixture(scope="module")
def nodes_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    with ClusterNodes(tmp_path_factory.mktemp("nodes")) as nodes:
        three = Three(nodes.start("n1", "n2", "n3"))
        for node in nodes.nodes:
            node.get([bytes(16)])  # its threads are there before the tests are
        yield three


@pytest.fixture
def nodes(nodes_of_all: Three) -> Three:
    nodes_of_all.begin()
    return nodes_of_all


def reserved_bytes(node: Node) -> int:
    return sum(tier.reserved_bytes + tier.leased_bytes for tier in node.client.status().tiers if tier.tier == Tier.DRAM)


def assert_nothing_is_left(node: Node) -> None:
    eventually(lambda: reserved_bytes(node) == 0)


def test_layers_come_while_they_are_written_and_the_block_is_there_at_its_commit(nodes: Three) -> None:
    one, two = nodes.one, nodes.two
    with LayerWriter(one.client, nodes.numbers(3)) as writer, Waiting(two, writer.keys) as reader:
        for done in range(1, 8):
            writer.write(done)
            nodes.until(two, "peer_layers_pulled", done * 3)
        assert (
            nodes.count(two, "peer_bytes_pulled_early") == 3 * SIZE // 8 * 7
            and nodes.count(two, "peer_blocks_pulled") == 0
        )
        assert two.get(writer.keys) == [None] * 3, "provisional blocks are nobody's"
        writer.commit()
        reader.join()
        assert reader.payloads == writer.payloads
        assert sorted(reader.layers) == reader.layers and reader.layers[-1] == 7
    assert nodes.count(two, "peer_blocks_followed") == 3
    assert nodes.received(two, one) == 3 * SIZE, "every byte moved once"
    nodes.assert_nothing_is_left()


def test_a_directory_server_changes_nothing(tmp_path: Path) -> None:
    with DirectoryServer(tmp_path) as server, ClusterNodes(tmp_path, directory=server.url) as nodes:
        one, two = nodes.start("n1", "n2")
        eventually(lambda: {peer.name for peer in two.peers().peers} == {"n1"})
        with LayerWriter(one.client, [1]) as writer, Waiting(two, writer.keys) as reader:
            writer.write(4)
            eventually(lambda: two.counters().get("peer_layers_pulled", 0) == 4)
            writer.commit()
        assert reader.payloads == writer.payloads


def test_a_busy_node_is_not_taken_for_one_where_nobody_writes_by_who_has_time(tmp_path: Path) -> None:
    with DirectoryServer(tmp_path) as server, ClusterNodes(tmp_path, directory=server.url) as nodes:
        one, two = nodes.start("n1", "n2")
        eventually(lambda: {peer.name for peer in two.peers().peers} == {"n1"})
        with Waiting(two, [key_of(2)]) as before:  # there is a link
            pass
        assert before.payloads == [None]
        with LayerWriter(one.client, [1]) as writer:
            one.daemon.freeze()
            began = time.monotonic()
            with Waiting(two, writer.keys, 60.0) as reader:
                eventually(lambda: time.monotonic() - began > 0.6)
                one.daemon.thaw()
                eventually(lambda: reserved_bytes(two) > 0 or not reader.alive)
                writer.commit()
        assert reader.payloads == writer.payloads


def test_blocks_that_are_announced_are_waited_for_and_followed_from_their_first_layer_on(nodes: Three) -> None:
    one, two = nodes.one, nodes.two
    numbers = nodes.numbers(4)
    keys = [key_of(number) for number in numbers]
    one.client.expect(one.namespace(), keys, 30.0)
    with Waiting(two, keys) as reader:
        for chunk in (0, 1):
            with LayerWriter(one.client, numbers[chunk * 2 : chunk * 2 + 2], layers=4) as writer:
                writer.write(2)
                nodes.until(two, "peer_layers_pulled", 4 * (chunk + 1))
                writer.commit()
    assert reader.payloads == [payload_of(number) for number in numbers]
    assert nodes.count(two, "peer_blocks_followed") == 4


def test_what_nobody_puts_anywhere_is_a_miss_at_once(nodes: Three) -> None:
    two = nodes.two
    with Waiting(two, [key_of(nodes.numbers(1)[0])]) as reader:
        pass
    assert reader.payloads == [None] and reader.took_seconds < AT_ONCE_SECONDS


def test_who_waits_gets_what_came_since_it_was_missed_a_moment_ago(nodes: Three) -> None:
    one, two = nodes.one, nodes.two
    [number] = nodes.numbers(1)
    assert two.get([key_of(number)]) == [None], "for a moment it is known that nobody has it"
    one.put({key_of(number): payload_of(number)})
    with Waiting(two, [key_of(number)]) as reader:
        pass
    assert reader.payloads == [payload_of(number)] and reader.took_seconds < AT_ONCE_SECONDS


def test_a_writer_that_aborts_leaves_nothing_and_one_that_begins_anew_is_followed_anew(nodes: Three) -> None:
    one, two = nodes.one, nodes.two
    numbers = nodes.numbers(1)
    keys = [key_of(number) for number in numbers]
    one.client.expect(one.namespace(), keys, 30.0)
    with Waiting(two, keys) as reader:
        with LayerWriter(one.client, numbers) as writer:
            writer.write(6)
            nodes.until(two, "peer_layers_pulled", 6)
            writer.abort()
        nodes.until(two, "peer_follows_dropped", 1)
        with LayerWriter(one.client, numbers, version=1) as second:
            second.write(2)
            nodes.until(two, "peer_layers_pulled", 8)
            second.commit()
    assert reader.payloads == second.payloads != writer.payloads
    with LayerWriter(one.client, nodes.numbers(1)) as writer, Waiting(two, writer.keys) as reader:
        writer.write(5)
        nodes.until(two, "peer_layers_pulled", 13)
        writer.abort()
    assert reader.payloads == [None] and reader.took_seconds < AT_ONCE_SECONDS
    nodes.assert_nothing_is_left()


def test_the_death_of_the_writer_ends_the_wait_at_once(nodes: Three) -> None:
    one, two = nodes.one, nodes.two
    numbers = nodes.numbers(2)
    keys = [key_of(number) for number in numbers]
    with writing_process(one, 8, 4, *numbers) as process, Waiting(two, keys) as reader:
        nodes.until(two, "peer_layers_pulled", 8)
        process.kill()
    assert reader.payloads == [None, None] and reader.took_seconds < AT_ONCE_SECONDS
    assert nodes.count(two, "peer_follows_dropped") == 2
    nodes.assert_nothing_is_left()


def test_the_death_of_the_writers_node_ends_the_wait_at_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        one, two = stack.enter_context(ClusterNodes(tmp_path)).start("n1", "n2")
        stack.enter_context(writing_process(one, 8, 4, 1))
        reader = stack.enter_context(Waiting(two, [key_of(1)]))
        eventually(lambda: two.counters().get("peer_layers_pulled", 0) == 4)
        one.close_client()
        one.daemon.kill()
        reader.join()
        assert reader.payloads == [None] and reader.took_seconds < AT_ONCE_SECONDS
        assert_nothing_is_left(two)


@pytest.mark.slow
def test_a_writers_node_that_hangs_costs_nobody_more_than_the_deadline(tmp_path: Path) -> None:
    with ClusterNodes(tmp_path) as nodes:
        one, two = nodes.start("n1", "n2")
        with LayerWriter(one.client, [1]) as writer, Waiting(two, writer.keys, 2.0) as reader:
            writer.write(4)
            eventually(lambda: two.counters().get("peer_layers_pulled", 0) == 4)
            one.daemon.freeze()
            reader.join()
            assert reader.payloads == [None] and reader.took_seconds < 2.0 + AT_ONCE_SECONDS
            assert_nothing_is_left(two)
            with Waiting(two, [key_of(2)], 20.0) as other:
                pass
            assert other.payloads == [None] and other.took_seconds < AT_ONCE_SECONDS
            one.daemon.thaw()
            writer.commit()
        eventually(lambda: two.get(writer.keys) == writer.payloads)


def test_a_layer_that_is_changed_after_it_was_told_of_is_never_served_as_it_was(nodes: Three) -> None:
    one, two = nodes.one, nodes.two
    with LayerWriter(one.client, nodes.numbers(2)) as writer, Waiting(two, writer.keys) as reader:
        writer.write(6)
        nodes.until(two, "peer_layers_pulled", 12)
        writer.spoil(0, SIZE // 8 + 5)
        writer.commit()
    assert reader.payloads == writer.payloads, "the committed bytes, pulled anew"
    assert nodes.count(two, "peer_follows_unlike") == 1 and nodes.count(two, "peer_blocks_followed") == 1
    nodes.assert_nothing_is_left()


def test_a_deadline_is_kept_and_who_waits_longer_is_served(nodes: Three) -> None:
    one, two = nodes.one, nodes.two
    with LayerWriter(one.client, nodes.numbers(1)) as writer, Waiting(two, writer.keys, 3.0) as hasty:
        writer.write(4)
        nodes.until(two, "peer_layers_pulled", 4)
        with Waiting(two, writer.keys, 20.0) as patient:
            hasty.join()
            assert hasty.payloads == [None] and hasty.took_seconds < 3.0 + AT_ONCE_SECONDS
            eventually(lambda: bool(patient.layers))
            writer.commit()
    assert patient.payloads == writer.payloads
    assert nodes.count(two, "peer_follows_dropped") == 0 and nodes.count(two, "peer_blocks_followed") == 1


def test_a_writer_that_takes_longer_than_all_who_wait_costs_them_no_more(nodes: Three) -> None:
    one, two = nodes.one, nodes.two
    with LayerWriter(one.client, nodes.numbers(1)) as writer:
        with Waiting(two, writer.keys, 1.5) as reader:
            writer.write(4)
        assert reader.payloads == [None] and reader.took_seconds < 1.5 + AT_ONCE_SECONDS
        nodes.until(two, "peer_follows_dropped", 1)
        assert_nothing_is_left(two)
        writer.commit()
    assert two.get(writer.keys) == writer.payloads


def test_twenty_who_wait_cause_one_transfer(nodes: Three) -> None:
    one, two = nodes.one, nodes.two
    with LayerWriter(one.client, nodes.numbers(2)) as writer, ExitStack() as stack:
        readers = [stack.enter_context(Waiting(two, writer.keys)) for _ in range(20)]
        for done in (3, 6):
            writer.write(done)
            nodes.until(two, "peer_layers_pulled", done * 2)
        eventually(lambda: all(reader.layers for reader in readers))
        writer.commit()
    assert [reader.payloads for reader in readers] == [writer.payloads] * 20
    assert nodes.received(two, one) == 2 * SIZE and nodes.count(two, "peer_blocks_pulled") == 2


def test_a_block_of_a_writer_that_tells_no_layers_is_waited_for_and_then_pulled(nodes: Three) -> None:
    one, two = nodes.one, nodes.two
    with LayerWriter(one.client, nodes.numbers(1), layers=1) as writer, Waiting(two, writer.keys) as reader:
        eventually(lambda: reserved_bytes(two) > 0)
        writer.commit()
    assert reader.payloads == writer.payloads and nodes.count(two, "peer_layers_pulled") == 0


def test_who_follows_a_block_does_not_show_it_to_others(nodes: Three, tmp_path: Path) -> None:
    """A fourth node that knows only the follower: two that follow each other would never learn that the writer has gone."""
    one, two, three = nodes.one, nodes.two, nodes.three
    with ClusterNodes(tmp_path) as others, LayerWriter(one.client, nodes.numbers(1)) as writer:
        [four] = others.start("n4", peers=[two.address])  # before anybody waits: it may take longer than they do
        with Waiting(two, writer.keys) as second:
            writer.write(4)
            nodes.until(two, "peer_layers_pulled", 4)
            with Waiting(three, writer.keys) as third:
                nodes.until(three, "peer_layers_pulled", 4)
                with Waiting(four, writer.keys) as fourth:
                    pass
                writer.commit()
    assert second.payloads == third.payloads == writer.payloads
    assert (nodes.received(three, one), nodes.received(three, two)) == (SIZE, 0)
    assert fourth.payloads == [None] and fourth.took_seconds < AT_ONCE_SECONDS


def test_who_does_not_wait_neither_follows_nor_is_kept_waiting(nodes: Three) -> None:
    one, two = nodes.one, nodes.two
    with LayerWriter(one.client, nodes.numbers(1)) as writer:
        writer.write(4)
        began = time.monotonic()
        assert two.get(writer.keys, seconds=20.0) == [None]
        assert time.monotonic() - began < AT_ONCE_SECONDS
        assert reserved_bytes(two) == 0 and nodes.count(two, "peer_layers_pulled") == 0
        writer.commit()


@pytest.mark.slow
def test_writers_that_commit_abort_and_begin_anew_under_many_readers_give_no_wrong_byte(nodes: Three) -> None:
    """Each version of a key has bytes of its own; the one that was committed is the only one that anybody may see."""
    one, two, three = nodes.one, nodes.two, nodes.three
    for _ in range(6):
        numbers = nodes.numbers(4)
        one.client.expect(one.namespace(), [key_of(number) for number in numbers], 30.0)
        with ExitStack() as stack:
            readers = [stack.enter_context(Waiting(node, [key_of(n) for n in numbers])) for node in (two, three) * 3]
            for version in range(3):
                with LayerWriter(one.client, numbers, version=version) as writer:
                    for done in range(1, 8):
                        writer.write(done)
                    if version == 1:
                        writer.spoil(0, 7)
                    if version == 2:
                        writer.commit()
        found = [reader.payloads for reader in readers]
        assert all(payloads == writer.payloads for payloads in found), [
            [None if p is None else p == w for p, w in zip(payloads, writer.payloads, strict=True)]
            for payloads in found
        ]
    assert threading.active_count() < 50
    nodes.assert_nothing_is_left()
