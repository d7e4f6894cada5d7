"""Who gets a copy of what is hot, and what counts as hot: the pure parts."""

from mooncask.daemon.directory.directory import NodeRecord
from mooncask.daemon.peers.hot import ReadCounts
from mooncask.daemon.peers.plan import choose_takers


def node(name: str, used: int = 0, load: int = 0) -> NodeRecord:
    return NodeRecord(name, name.encode().rjust(16), "127.0.0.1:1", capacity_bytes=100, load=load, used_bytes=used)


def test_the_node_with_most_room_takes_it_and_of_those_alike_the_one_with_least_to_do() -> None:
    nodes = [node("full", used=100), node("busy", used=51, load=9), node("idle", used=57), node("empty", used=5)]
    assert [taker.name for taker in choose_takers(nodes, [], 4)] == ["empty", "idle", "busy", "full"]


def test_nobody_takes_what_it_has_and_no_more_take_it_than_are_wanted() -> None:
    nodes = [node("a"), node("b"), node("c")]
    assert [taker.name for taker in choose_takers(nodes, [nodes[0].incarnation], 5)] == ["b", "c"]
    assert choose_takers(nodes, [], 0) == [] == choose_takers(nodes, [], -1)


def test_reads_count_within_their_window_only() -> None:
    reads = ReadCounts(10.0)
    assert [reads.add(1, b"k", second) for second in (0.0, 5.0, 10.0, 11.0)] == [1, 2, 3, 1]
    assert reads.add(2, b"k", 11.0) == 1, "of another namespace"
    reads.begin_anew(1, b"k")
    assert reads.add(1, b"k", 11.0) == 1


def test_no_more_blocks_are_counted_than_there_is_room_for() -> None:
    reads = ReadCounts(10.0, most=3)
    for number in range(5):
        reads.add(1, bytes([number]), 0.0)
    assert len(reads) == 3 and reads.add(1, bytes([0]), 1.0) == 1 and reads.add(1, bytes([4]), 1.0) == 2
