"""What is known of the bucket, against a model: the same block in several packs, packs that come and go, and what it costs."""

import tracemalloc

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mooncask.daemon.cold.index import Block, ColdIndex, Pack, PackName
from mooncask.daemon.cold.ranges import GAP_BYTES_MAX, READ_BYTES_MAX, plan_reads
from mooncask.daemon.cold.sealing import NO_KEY_ID

NS = b"n" * 16
KEYS = [b"k%d" % i for i in range(6)]


def pack(number: int, run: bytes = bytes(16)) -> Pack:
    return Pack(PackName(run, number), "n1-0123456789abcdef", 1000, 0, NO_KEY_ID)


class IndexModel(RuleBasedStateMachine):
    """The model: which packs are there with which keys, and which of these count; a block is in the oldest pack where it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.index = ColdIndex(1000)
        self.packs: dict[int, list[bytes]] = {}
        self.counting: dict[int, set[bytes]] = {}

    @property
    def known(self) -> set[bytes]:
        return {key for keys in self.counting.values() for key in keys}

    @rule(number=st.integers(0, 5), keys=st.sets(st.sampled_from(KEYS), min_size=1))
    def add(self, number: int, keys: set[bytes]) -> None:
        """A pack that is known already is looked at again, and has what it had: packs are never changed."""
        self.packs.setdefault(number, sorted(keys))
        self.index.add(pack(number), [Block(NS, key, 10 * i, 10) for i, key in enumerate(self.packs[number])])
        self.counting[number] = set(self.packs[number])

    @rule(number=st.integers(0, 5))
    def drop(self, number: int) -> None:
        """Who has copies of what was in it is asked again, as `Refreshing` does."""
        again = self.index.drop(PackName(bytes(16), number))
        self.packs.pop(number, None)
        gone = self.counting.pop(number, set())
        assert again or all(self.index.has(NS, key) for key in gone & self.known)
        if again:
            for other in list(self.packs):
                self.add(other, set())

    @rule(key=st.sampled_from(KEYS))
    def forget(self, key: bytes) -> None:
        found = self.index.forget(NS, key)
        assert (found is not None) == (key in self.known)
        for keys in self.counting.values():
            keys.discard(key)

    @invariant()
    def what_is_found_is_what_is_there(self) -> None:
        for key in KEYS:
            place = self.index.find(NS, key)
            assert (place is not None) == (key in self.known) == self.index.has(NS, key)
            if place is not None:
                oldest = min(number for number, keys in self.counting.items() if key in keys)
                assert place.pack.name.number == oldest
                assert (place.offset, place.length) == (10 * self.packs[oldest].index(key), 10)

    @invariant()
    def sums_add_up(self) -> None:
        assert self.index.blocks == len(self.known) == sum(one.live for one in self.index.packs)
        assert self.index.pack_count == len(self.packs)
        for one in self.index.packs:
            assert len(self.index.entries(one)) == one.live and one.live_bytes == 10 * one.live


TestIndexModel = IndexModel.TestCase
TestIndexModel.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_block_in_two_packs_is_found_in_the_older_one_on_every_node_whatever_came_first() -> None:
    for order in ((1, 2), (2, 1)):
        index = ColdIndex(10)
        for number in order:
            index.add(pack(number), [Block(NS, b"k", 0, 10)])
        place = index.find(NS, b"k")
        assert place is not None and place.pack.name.number == 1
        [younger] = [one for one in index.packs if one.name.number == 2]
        assert (younger.live, younger.shadowed) == (0, 1)


def test_more_blocks_than_allowed_are_left_out_and_counted() -> None:
    index = ColdIndex(3)
    index.add(pack(1), [Block(NS, key, 0, 10) for key in KEYS])
    assert (index.blocks, index.left_out) == (3, 3)
    [one] = index.packs
    assert (one.live, one.left_out) == (3, 3)


def test_a_block_costs_at_most_256_bytes() -> None:
    count = 50_000
    tracemalloc.start()
    try:
        index = ColdIndex(count)
        for number in range(50):
            index.add(
                pack(number),
                [Block(NS, (1000 * number + i).to_bytes(16, "big"), 65_700 * i, 65_664) for i in range(1000)],
            )
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert index.blocks == count and used / count < 256


def test_neighbours_are_read_together_up_to_a_limit_and_each_block_once() -> None:
    index = ColdIndex(1000)
    sizes = [65_000] * 300
    blocks = [Block(NS, b"k%d" % i, sum(sizes[:i]), size) for i, size in enumerate(sizes)]
    index.add(pack(1), blocks)
    index.add(pack(2), [Block(NS, b"other", 0, 65_000)])
    wanted = [(key, index.find(NS, key)) for key in [*(b"k%d" % i for i in range(300) if i != 150), b"other"]]
    reads = plan_reads((key, place) for key, place in wanted if place is not None)
    assert sorted(key for read in reads for key in read.places) == sorted(key for key, _ in wanted)
    assert len(reads) < 6 and all(read.length <= READ_BYTES_MAX for read in reads)
    for read in reads:
        for place in read.places.values():
            assert read.pack is place.pack
            assert read.offset <= place.offset and place.offset + place.length <= read.offset + read.length


def test_what_is_far_apart_in_a_pack_is_read_apart() -> None:
    index = ColdIndex(10)
    index.add(pack(1), [Block(NS, b"a", 0, 10), Block(NS, b"b", 11 + GAP_BYTES_MAX, 10)])
    reads = plan_reads((key, place) for key in (b"a", b"b") if (place := index.find(NS, key)) is not None)
    assert [read.length for read in reads] == [10, 10]
