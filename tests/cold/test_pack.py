"""The bytes of packs and index objects: what went in comes out, and anything else is refused."""

import os
import struct

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncask.daemon.cold.index import Block, Pack, PackName
from mooncask.daemon.cold.index_object import IndexBody, NamespaceEntry, PackEntry, decode_index, encode_index, numbers
from mooncask.daemon.cold.pack import (
    HEADER_BYTES,
    INDEX_MAGIC,
    PACK_MAGIC,
    BadObject,
    BlockFacts,
    ObjectHeader,
    Record,
    decode_header,
    decode_record,
    encode_header,
    identity_of,
    record_length,
)
from mooncask.daemon.cold.pack_builder import PackBuilder, pack_entry
from mooncask.daemon.cold.sealing import NO_KEY_ID, AesGcm, Plain, Sealing, key_id
from mooncask.tiers.checksum import payload_checksum

RUN = bytes(range(16))
NODE = f"n1-{RUN[:8].hex()}"
NAME = PackName(RUN, 7)
IDENTITY = identity_of(PACK_MAGIC, *NAME)
KEY = bytes(range(32))
CIPHER = AesGcm(key_id(KEY), {key_id(KEY): KEY})
SEALINGS = [Plain(), CIPHER]

facts = st.builds(
    lambda ns_id, key, parent, payload, depth, tokens, created: (
        BlockFacts(ns_id, key, len(payload), payload_checksum(memoryview(payload)), parent, depth, tokens, created),
        payload,
    ),
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=1, max_size=64),
    st.binary(max_size=64),
    st.binary(min_size=1, max_size=3000),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**63),
)
sealings = st.sampled_from(SEALINGS)


def built(blocks: list[tuple[BlockFacts, bytes]], sealing: Sealing) -> tuple[PackBuilder, bytes]:
    builder = PackBuilder(NAME, sealing, 1 << 20)
    for one, payload in blocks:
        builder.add(one, memoryview(payload))
    return builder, bytes(builder.finish())


def read(data: bytes, block: Block, sealing: Sealing) -> Record:
    part = data[block.offset : block.offset + block.length]
    return decode_record(part, sealing, sealing.key_id, IDENTITY, block.offset)


@given(st.lists(facts, min_size=1, max_size=5), sealings)
@settings(max_examples=60, deadline=None)
def test_blocks_come_out_of_a_pack_as_they_went_in(blocks: list[tuple[BlockFacts, bytes]], sealing: Sealing) -> None:
    builder, data = built(blocks, sealing)
    header = decode_header(data, PACK_MAGIC)
    assert (header.incarnation, header.number, header.parts) == (RUN, 7, len(blocks))
    assert len(data) == builder.size
    for block, (one, payload) in zip(builder.blocks, blocks, strict=True):
        assert block.length == record_length(one, sealing)
        record = read(data, block, sealing)
        assert record.facts == one and bytes(record.payload) == payload


@given(facts, sealings, st.data())
@settings(max_examples=120, deadline=None)
def test_a_record_with_a_changed_or_missing_byte_is_none_or_fails_its_checksum(
    block: tuple[BlockFacts, bytes], sealing: Sealing, data: st.DataObject
) -> None:
    builder, whole = built([block], sealing)
    [place] = builder.blocks
    part = bytearray(whole[place.offset : place.offset + place.length])
    if data.draw(st.booleans()):
        part = part[: data.draw(st.integers(0, len(part) - 1))]
    else:
        part[data.draw(st.integers(0, len(part) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        record = decode_record(bytes(part), sealing, sealing.key_id, IDENTITY, place.offset)
    except BadObject:
        return
    assert record.facts == block[0], "whatever is told of the block is right"
    assert payload_checksum(record.payload) != record.facts.checksum, "and its bytes are known to be wrong"


def test_an_encrypted_record_opens_only_where_it_was_put_and_with_its_key() -> None:
    one = BlockFacts(bytes(16), b"k", 3, payload_checksum(memoryview(b"abc")))
    builder, whole = built([(one, b"abc")], CIPHER)
    [place] = builder.blocks
    part = whole[place.offset : place.offset + place.length]
    assert b"abc" not in part
    other = os.urandom(32)
    for sealing, named, identity, offset in (
        (CIPHER, CIPHER.key_id, IDENTITY, place.offset + 1),
        (CIPHER, CIPHER.key_id, identity_of(PACK_MAGIC, RUN, 8), place.offset),
        (AesGcm(key_id(other), {key_id(other): other}), CIPHER.key_id, IDENTITY, place.offset),
        (AesGcm(CIPHER.key_id, {CIPHER.key_id: other}), CIPHER.key_id, IDENTITY, place.offset),
        (Plain(), CIPHER.key_id, IDENTITY, place.offset),
    ):
        with pytest.raises(BadObject):
            decode_record(part, sealing, named, identity, offset)


def test_what_is_not_encrypted_is_not_believed_where_there_is_a_key() -> None:
    one = BlockFacts(bytes(16), b"k", 3, payload_checksum(memoryview(b"abc")))
    builder, whole = built([(one, b"abc")], Plain())
    [place] = builder.blocks
    with pytest.raises(BadObject, match="not encrypted"):
        decode_record(whole[place.offset :], CIPHER, NO_KEY_ID, IDENTITY, place.offset)


def body(sealing: Sealing) -> IndexBody:
    blocks = [Block(b"n" * 16, b"key %d" % i, 80 + 100 * i, 100) for i in range(3)]
    pack = Pack(NAME, NODE, 80 + 300, 1_700_000_000, sealing.key_id)
    namespace = NamespaceEntry(b"n" * 16, "kv-1", {"model": "m"}, "tp=any", "default", b"f" * 16)
    return IndexBody([namespace], [pack_entry(pack, blocks, [b"n" * 16])])


@pytest.mark.parametrize("sealing", SEALINGS, ids=["plain", "encrypted"])
def test_an_index_object_comes_out_as_it_went_in(sealing: Sealing) -> None:
    data = encode_index(RUN, 9, body(sealing), sealing)
    found = decode_index(data, sealing, RUN, 9)
    assert found == body(sealing)
    assert list(numbers(found.packs[0].offsets)) == [80, 180, 280]


@given(st.data(), sealings)
@settings(max_examples=150, deadline=None)
def test_an_index_object_with_a_changed_or_missing_byte_is_refused(data: st.DataObject, sealing: Sealing) -> None:
    whole = bytearray(encode_index(RUN, 9, body(sealing), sealing))
    if data.draw(st.booleans()):
        whole = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadObject):
        decode_index(bytes(whole), sealing, RUN, 9)


@pytest.mark.parametrize(
    "pack",
    [
        PackEntry(RUN, 1, NODE, 100, 0, NO_KEY_ID, [b"k"], struct.pack("<I", 0), struct.pack("<I", 90), struct.pack("<I", 20)),
        PackEntry(RUN, 1, NODE, 100, 0, NO_KEY_ID, [b"k"], struct.pack("<I", 1), struct.pack("<I", 0), struct.pack("<I", 20)),
        PackEntry(RUN, 1, NODE, 100, 0, NO_KEY_ID, [b"k"], b"", struct.pack("<I", 0), struct.pack("<I", 20)),
        PackEntry(b"short", 1, NODE, 100, 0, NO_KEY_ID, [], b"", b"", b""),
        PackEntry(bytes(16), 1, NODE, 100, 0, NO_KEY_ID, [], b"", b"", b""),
        PackEntry(RUN, 1, f"../../{NODE}", 100, 0, NO_KEY_ID, [], b"", b"", b""),
    ],
    ids=["beyond the end", "unknown namespace", "short column", "no incarnation", "another node", "a path"],
)  # fmt: skip
def test_an_index_object_that_contradicts_itself_is_refused(pack: PackEntry) -> None:
    namespace = NamespaceEntry(bytes(16), "kv", {}, "", "", b"")
    with pytest.raises(BadObject):
        decode_index(encode_index(RUN, 1, IndexBody([namespace], [pack]), Plain()), Plain(), RUN, 1)


def test_an_object_under_another_name_is_refused() -> None:
    data = encode_index(RUN, 9, body(Plain()), Plain())
    for run, number in ((RUN, 8), (bytes(16), 9)):
        with pytest.raises(BadObject, match="another index object"):
            decode_index(data, Plain(), run, number)


def test_a_newer_version_is_refused_by_its_number() -> None:
    header = bytearray(encode_header(ObjectHeader(INDEX_MAGIC, RUN, 1, 0, NO_KEY_ID)))
    header[8] = 2
    end = HEADER_BYTES - 16
    header[end:] = xxhash.xxh3_128_digest(bytes(header[:end]))
    with pytest.raises(BadObject, match="version 2"):
        decode_header(bytes(header), INDEX_MAGIC)
