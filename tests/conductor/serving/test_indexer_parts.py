"""The index's parts without sockets: rolling hashes, events in both forms and as garbage, tables against a plain record."""

import contextlib
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from mooncask.conductor.serving.indexer.hashes import sequence_hashes
from mooncask.conductor.serving.indexer.table import PrefixTable
from mooncask.conductor.serving.kv_events.events import BadEvents, Cleared, Removed, Stored, decode
from mooncask.errors import BadField

BLOCK = 4


def prompt(blocks: int) -> list[int]:
    return list(range(blocks * BLOCK))


def test_rolling_hashes_are_those_of_the_published_definition() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    local = [
        xxhash.xxh3_64_intdigest(b"".join(token.to_bytes(4, "little") for token in tokens[i : i + 4]), 3)
        for i in (0, 4)
    ]
    joined = local[0].to_bytes(8, "little") + local[1].to_bytes(8, "little")
    assert sequence_hashes([*tokens, 9], 4, 3) == [local[0], xxhash.xxh3_64_intdigest(joined, 3)]
    with pytest.raises(BadField):
        sequence_hashes([1 << 32], 1, 0)


@pytest.mark.parametrize(
    "event",
    [
        ["BlockStored", [5, b"\x00" * 24 + b"\x00" * 7 + b"\x06"], None, [1, 2], 1, None, "CPU_PINNED", "l"],
        {
            "type": "BlockStored",
            "block_hashes": [5, b"\x06"],
            "parent_block_hash": None,
            "token_ids": [1, 2],
            "block_size": 1,
            "medium": "cpu",
            "lora_name": "l",
            "new_field": 3,
        },
    ],
)
def test_both_forms_of_events_are_read(event: Any) -> None:
    assert decode(msgspec.msgpack.encode([1.5, [event, {"type": "Unknown"}], 0])) == [
        Stored([5, 6], None, [1, 2], 1, "l", "CPU")
    ]
    assert decode(msgspec.msgpack.encode([1.5, [["BlockRemoved", [5]], ["AllBlocksCleared"]]])) == [
        Removed([5], "GPU"),
        Cleared(),
    ]


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers(-5, 5) | st.text(max_size=3), st.lists).map(msgspec.msgpack.encode)
)
def test_no_bytes_do_more_than_be_refused(payload: bytes) -> None:
    with contextlib.suppress(BadEvents):
        decode(payload)


Step = tuple[str, int, str]


@given(
    st.lists(
        st.tuples(st.sampled_from(["store", "remove", "clear"]), st.integers(0, 5), st.sampled_from(["GPU", "CPU"]))
    )
)
def test_a_table_tells_what_a_plain_record_of_the_events_says(steps: list[Step]) -> None:
    """The model: a set of (depth, medium) of one chain whose blocks come in order."""
    table, held = PrefixTable(BLOCK, 0, 1000), set[tuple[int, str]]()
    for kind, depth, medium in steps:
        if kind == "store":
            table.apply(Stored(list(range(depth + 1)), None, prompt(depth + 1), BLOCK, "", medium))
            held |= {(i, medium) for i in range(depth + 1)}
        elif kind == "remove":
            table.apply(Removed([depth], medium))
            held.discard((depth, medium))
        else:
            table.apply(Cleared())
            held.clear()
    found = table.match(sequence_hashes(prompt(6), BLOCK, 0))
    expected = next((i for i in range(6) if not any((i, m) in held for m in ("GPU", "CPU"))), 6)
    assert found.blocks == expected
    assert len(table) == len({depth for depth, _ in held})
    for medium in ("GPU", "CPU"):
        assert found.media.get(medium, 0) == sum((i, medium) in held for i in range(expected))


def test_a_table_forgets_the_oldest_and_passes_over_what_it_can_not_place() -> None:
    table = PrefixTable(BLOCK, 0, 3)
    table.apply(Stored([1, 2, 3, 4, 5], None, prompt(5), BLOCK, "", "GPU"))
    assert len(table) == 3
    assert table.match(sequence_hashes(prompt(5), BLOCK, 0)).blocks == 0
    table.apply(Stored([9], 77, prompt(1), BLOCK, "", "GPU"))
    table.apply(Stored([9], None, prompt(1), 8, "", "GPU"))
    table.apply(Stored([9], None, prompt(1), BLOCK, "", "GPU", [["salt"]]))
    assert table.passed_over == 3
    assert len(table) == 3


def test_equal_tokens_under_two_names_are_there_until_both_are_gone() -> None:
    table, sequences = PrefixTable(BLOCK, 0, 100), sequence_hashes(prompt(1), BLOCK, 0)
    for name, medium in ((1, "GPU"), (2, "CPU"), (3, "GPU")):
        table.apply(Stored([name], None, prompt(1), BLOCK, "", medium))
    assert table.match(sequences).media == {"GPU": 1, "CPU": 1}
    table.apply(Removed([1, 3], "GPU"))
    assert table.match(sequences).media == {"CPU": 1}
    table.apply(Removed([2], "CPU"))
    assert table.match(sequences).blocks == 0
    assert len(table) == 0


def test_a_name_that_comes_again_for_other_tokens_stands_for_those() -> None:
    table = PrefixTable(BLOCK, 0, 100)
    table.apply(Stored([1], None, prompt(1), BLOCK, "", "GPU"))
    table.apply(Stored([1], None, [9, 9, 9, 9], BLOCK, "", "GPU"))
    assert table.match(sequence_hashes(prompt(1), BLOCK, 0)).blocks == 0
    assert table.match(sequence_hashes([9, 9, 9, 9], BLOCK, 0)).blocks == 1
