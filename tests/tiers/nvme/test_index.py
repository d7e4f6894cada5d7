"""What a batch of changes does to the index, whatever order things arrived in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mooncask.tiers.block import BlockRecord
from mooncask.tiers.nvme.index import Index, IndexFault, IndexUnreadable
from mooncask.tiers.nvme.index_entry import BlockEntry, Delete, DropNamespace, Forget, Move, Put, SetMeta
from mooncask.tiers.nvme.record import Place

HERE, THERE, ELSEWHERE = Place(1, 8192, 5), Place(2, 8192, 6), Place(3, 8192, 7)


def entry(sequence: int, place: Place = HERE, key: bytes = b"k", namespace: int = 1) -> BlockEntry:
    return BlockEntry(place, BlockRecord(namespace, key, 5000, b"c" * 16, sequence, b"parent", 1, 16))


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    opened = Index.open(tmp_path / "index", create=True)
    yield opened
    opened.close()


def test_an_entry_comes_back_as_it_was_put(index: Index) -> None:
    put = BlockEntry(HERE, entry(7).record, 12.5, 3)
    index.apply([Put(put)])
    assert index.entry(1, b"k") == put
    assert index.entry(2, b"k") is None


def test_an_older_copy_never_takes_the_place_of_a_newer_one(index: Index) -> None:
    index.apply([Put(entry(7, THERE))])
    assert index.apply([Put(entry(6, HERE))]) == []
    assert index.entry(1, b"k") == entry(7, THERE)


def test_a_newer_copy_tells_where_the_older_one_lay(index: Index) -> None:
    assert index.apply([Put(entry(6, HERE)), Put(entry(7, THERE))]) == [HERE]


def test_forgetting_a_copy_spares_older_and_newer_ones(index: Index) -> None:
    index.apply([Put(entry(7))])
    assert index.apply([Forget(1, b"k", 6), Forget(1, b"k", 8)]) == []
    assert index.apply([Forget(1, b"k", 7)]) == [HERE]
    assert index.entry(1, b"k") is None


def test_deleting_takes_older_copies_along_and_spares_newer_ones(index: Index) -> None:
    index.apply([Put(entry(7))])
    assert index.apply([Delete(1, b"k", 6)]) == []
    assert index.apply([Delete(1, b"k", 9)]) == [HERE]


def test_a_move_counts_only_from_where_the_block_is_and_keeps_what_is_known(index: Index) -> None:
    index.apply([Put(entry(7)), SetMeta(1, b"k", 7, 9.0, 2)])
    index.apply([Move(1, b"k", ELSEWHERE, THERE)])
    assert index.entry(1, b"k") == BlockEntry(HERE, entry(7).record, 9.0, 2)
    index.apply([Move(1, b"k", HERE, THERE)])
    assert index.entry(1, b"k") == BlockEntry(THERE, entry(7).record, 9.0, 2)
    index.apply([Forget(1, b"k", 7), Move(1, b"k", THERE, HERE)])
    assert index.entry(1, b"k") is None


def test_a_dropped_namespace_takes_its_own_blocks_alone(index: Index) -> None:
    index.apply([Put(entry(number, namespace=number)) for number in (1, 255, 256, 257)])
    index.apply([DropNamespace(256)])
    assert [found.record.namespace for found in index.entries()] == [1, 255, 257]


def test_a_key_that_is_the_start_of_another_is_its_own(index: Index) -> None:
    index.apply([Put(entry(1, key=b"a")), Put(entry(2, key=b"ab")), Put(entry(3, key=b"a\x00"))])
    index.apply([Delete(1, b"a", 9)])
    assert [found.record.key for found in index.entries()] == [b"a\x00", b"ab"]


def test_an_index_that_is_not_there_is_unreadable_and_one_in_use_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(IndexUnreadable):
        Index.open(tmp_path / "index")
    opened = Index.open(tmp_path / "index", create=True)
    with pytest.raises(IndexFault):
        Index.open(tmp_path / "index")
    opened.close()
