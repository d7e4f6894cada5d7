"""Headers on disk: what is packed comes back, and whatever is changed is noticed."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncask.tiers.block import ALIGNMENT, BlockRecord
from mooncask.tiers.nvme.buffers import aligned_buffer
from mooncask.tiers.nvme.record import (
    BODY_BYTES_MAX,
    HEADER_BYTES,
    Header,
    Place,
    SegmentHeader,
    Tombstone,
    mismatch,
    pack_block,
    pack_segment,
    pack_tombstones,
    record_length,
    split_tombstones,
    unpack,
    unpack_segment,
)

FORMAT = (Path(__file__).parents[3] / "docs" / "FORMAT.md").read_text()
STORE = bytes(range(16))
PLACE = Place(3, 8192, 12)
RECORD = BlockRecord(7, b"key", 5000, b"c" * 16, 99, b"parent", 4, 16, 1_700_000_000, b"attributes")


def places(heading: str) -> dict[str, slice]:
    """Where the format page says that each field of a header lies, by the field's text; whole and without gaps."""
    text = FORMAT.partition(f"### {heading} (4,096 bytes")[2].partition("\n#")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (.+) \|$", text, re.MULTILINE)
    found = {field + at: slice(int(at), int(at) + int(size)) for at, size, field in rows}
    edges = [place.stop for place in found.values()]
    assert [place.start for place in found.values()] == [0, *edges[:-1]]
    return found


def fields(page: memoryview, heading: str, *words: str) -> list[bytes]:
    """The bytes of the fields whose text begins with each of `words`."""
    found = places(heading)
    return [bytes(page[next(place for name, place in found.items() if name.startswith(word))]) for word in words]


def numbers(page: memoryview, heading: str, *words: str) -> list[int]:
    return [int.from_bytes(field, "little") for field in fields(page, heading, *words)]


def packed(record: BlockRecord = RECORD, place: Place = PLACE) -> memoryview:
    page = aligned_buffer(HEADER_BYTES)
    pack_block(page, STORE, place, record)
    return page


@given(
    st.integers(0, 2**32 - 1),
    st.binary(min_size=1, max_size=1024),
    st.integers(0, 2**40),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=1024),
    st.binary(max_size=BODY_BYTES_MAX - 2048),
)
def test_a_packed_block_header_comes_back_field_by_field(
    namespace: int, key: bytes, size: int, sequence: int, parent: bytes, attributes: bytes
) -> None:
    record = BlockRecord(namespace, key, size, b"\x01" * 16, sequence, parent, 2**32 - 1, 1, 2**40, attributes)
    assert unpack(packed(record), STORE) == Header(PLACE, record_length(size), record)


def test_fields_lie_where_the_format_page_says() -> None:
    page, header = packed(), "Record header"
    assert fields(page, header, "magic", "store", "payload checksum") == [b"MCASKREC", STORE, b"c" * 16]
    where = ("segment number", "generation", "offset of this header", "length of the record")
    assert numbers(page, header, *where) == [3, 12, 8192, ALIGNMENT + 8192]
    assert numbers(page, header, "version", "kind", "namespace", "payload bytes", "sequence") == [2, 1, 7, 5000, 99]
    assert numbers(page, header, "depth", "tokens", "key bytes", "parent bytes") == [4, 16, 3, 6]
    assert numbers(page, header, "attributes' bytes", "created") == [10, 1_700_000_000]
    assert "| 136 | | key, parent, attributes, zeros |" in FORMAT and bytes(page[136:156]) == b"keyparentattributes\0"


def test_a_segment_headers_fields_lie_where_the_format_page_says() -> None:
    page, header = aligned_buffer(HEADER_BYTES), "Segment header"
    pack_segment(page, STORE, SegmentHeader(5, 77))
    assert fields(page, header, "magic", "store") == [b"MCASKSEG", STORE]
    assert numbers(page, header, "version", "segment number", "generation") == [2, 5, 77]


@given(st.integers(0, HEADER_BYTES - 1), st.integers(0, 7))
def test_any_flipped_bit_in_a_header_is_noticed(at: int, bit: int) -> None:
    page = packed()
    page[at] ^= 1 << bit
    assert isinstance(unpack(page, STORE), str)


def test_a_header_of_another_store_is_refused() -> None:
    assert unpack(packed(), bytes(16)) == "header of another store"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"key": b"kez"}, "block"),
        ({"namespace": 8}, "block"),
        ({"size": 5001}, "length"),
        ({"sequence": 98}, "sequence"),
        ({"checksum": b"d" * 16}, "checksum"),
    ],
)
def test_a_whole_header_of_another_block_is_told_from_the_right_one(change: dict[str, object], word: str) -> None:
    fields = {name: getattr(RECORD, name) for name in RECORD.__struct_fields__} | change
    header = unpack(packed(BlockRecord(**fields)), STORE)
    assert isinstance(header, Header)
    assert word in mismatch(header, PLACE, RECORD)


@pytest.mark.parametrize("place", [Place(4, 8192, 12), Place(3, 4096, 12), Place(3, 8192, 11)])
def test_a_header_from_another_place_or_generation_is_misdirected(place: Place) -> None:
    header = unpack(packed(place=place), STORE)
    assert isinstance(header, Header)
    assert "misdirected" in mismatch(header, PLACE, RECORD)


@given(st.lists(st.tuples(st.integers(0, 9), st.binary(min_size=1, max_size=1024), st.integers(0, 2**63)), max_size=40))
def test_tombstones_come_back_all_and_in_order(items: list[tuple[int, bytes, int]]) -> None:
    tombstones = [Tombstone(namespace, key, sequence, 5) for namespace, key, sequence in items]
    found: list[Tombstone] = []
    for group in split_tombstones(tombstones):
        page = aligned_buffer(HEADER_BYTES)
        pack_tombstones(page, STORE, PLACE, group)
        header = unpack(page, STORE)
        assert isinstance(header, Header)
        assert header.block is None
        assert header.length == HEADER_BYTES
        found += header.tombstones
    assert found == tombstones


def test_a_segment_header_is_read_back_and_every_flipped_bit_in_it_noticed() -> None:
    page = aligned_buffer(HEADER_BYTES)
    pack_segment(page, STORE, SegmentHeader(5, 77))
    assert unpack_segment(page, STORE) == SegmentHeader(5, 77)
    for at in range(64):
        page[at] ^= 1
        assert unpack_segment(page, STORE) is None
        page[at] ^= 1
    assert unpack_segment(page, bytes(16)) is None
