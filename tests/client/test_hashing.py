"""Prefix hashing: equal keys mean equal whole prefixes, in every process."""

import os
import subprocess
import sys
import time
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncask.client.family import Family
from mooncask.client.hashing import chain, encode_extra, namespace_name, root, usable_prefix
from mooncask.errors import BadRequest

ROOT = root(Family(model="m", block_tokens="4").fingerprint())
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(TOKENS, st.integers(1, 7), st.sampled_from(["sha256", "xxh3_128"]))
def test_only_full_blocks_have_keys_of_16_bytes(tokens: list[int], block_tokens: int, hash: str) -> None:
    keys = chain(ROOT, tokens, block_tokens, hash=hash)
    assert len(keys) == len(tokens) // block_tokens
    assert all(len(key) == 16 for key in keys)


@given(TOKENS, st.integers(1, 7), st.integers(0, 40))
def test_a_chain_can_be_continued_from_any_of_its_blocks(tokens: list[int], block_tokens: int, cut: int) -> None:
    whole = chain(ROOT, tokens, block_tokens)
    head = whole[:cut]
    rest = chain(head[-1] if head else ROOT, tokens[len(head) * block_tokens :], block_tokens)
    assert head + rest == whole


@given(TOKENS, st.integers(0, 39), st.integers(1, 2**32 - 1))
def test_a_changed_token_changes_its_block_and_all_later_ones_and_no_earlier(
    tokens: list[int], at: int, offset: int
) -> None:
    at %= max(1, len(tokens))
    changed = [(t + offset) % 2**32 if i == at else t for i, t in enumerate(tokens)]
    before, after = chain(ROOT, tokens, 4), chain(ROOT, changed, 4)
    assert before[: at // 4] == after[: at // 4]
    assert not set(before[at // 4 :]) & set(after[at // 4 :])


@pytest.mark.parametrize("dtype", ["u1", "i1", "<i2", ">i2", "<i4", ">u4", "<i8", ">i8", "u8"])
def test_the_width_and_byte_order_of_an_array_do_not_matter(dtype: str) -> None:
    tokens = [1, 2, 3, 127, 5, 6, 7, 8]
    assert chain(ROOT, np.array(tokens, dtype), 4) == chain(ROOT, tokens, 4)
    strided = np.zeros(16, dtype)
    strided[::2] = tokens
    assert chain(ROOT, strided[::2], 4) == chain(ROOT, tokens, 4)


@pytest.mark.parametrize(
    "tokens",
    [[-1, 0, 0, 0], [2**32, 0, 0, 0], [2**64, 0, 0, 0], [2**63, -1, 0, 0], [0.0, 1.0, 2.0, 3.0], [True] * 4, [[1] * 4]],
    ids=str,
)
def test_what_is_no_token_is_refused(tokens: list[int]) -> None:
    with pytest.raises(BadRequest):
        chain(ROOT, tokens, 4)
    with pytest.raises(BadRequest):
        chain(ROOT, np.array(tokens), 4)


def test_the_largest_token_is_accepted() -> None:
    assert len(chain(ROOT, [2**32 - 1] * 4, 4)) == 1


@pytest.mark.parametrize("block_tokens", [0, -4])
def test_a_block_of_no_tokens_is_refused(block_tokens: int) -> None:
    with pytest.raises(BadRequest, match="block_tokens"):
        chain(ROOT, [1], block_tokens)


def test_an_extra_changes_its_block_and_all_later_ones() -> None:
    plain = chain(ROOT, range(12), 4)
    assert chain(ROOT, range(12), 4, [b"", b"", b""]) == plain
    keys = chain(ROOT, range(12), 4, [b"", encode_extra({"lora": b"x"}), b""])
    assert keys[0] == plain[0]
    assert keys[1] != plain[1] and keys[2] != plain[2]


def test_extras_may_cover_the_block_that_is_not_full_and_no_more() -> None:
    extra = encode_extra({"lora": b"x"})
    assert chain(ROOT, range(9), 4, [extra] * 3) == chain(ROOT, range(9), 4, [extra] * 2)
    for count in (0, 1, 4):
        with pytest.raises(BadRequest, match="extras"):
            chain(ROOT, range(9), 4, [extra] * count)
    with pytest.raises(BadRequest, match="extras"):
        chain(ROOT, range(8), 4, [extra] * 3)


def test_extras_have_one_encoding_and_no_two_share_it() -> None:
    items = {"image@0": b"ab", "image@4": b"", "lora": b"c"}
    encodings = {encode_extra(dict(order)) for order in permutations(items.items())}
    assert len(encodings) == 1
    others = [{}, {"a": b"b"}, {"ab": b""}, {"": b"ab"}, {"a": b"", "b": b""}, {"a": b"b", "c": b""}]
    assert len({encode_extra(other) for other in others}) == len(others)
    assert encode_extra({}) == b""


def test_salt_family_and_hash_each_change_the_root() -> None:
    one, two = Family(model="1").fingerprint(), Family(model="2").fingerprint()
    roots = [root(one), root(two), root(one, b"\0"), root(one, b"\0\0"), root(one, b"", "xxh3_128")]
    assert len(set(roots)) == len(roots)


def test_a_fingerprint_of_another_length_is_refused() -> None:
    with pytest.raises(BadRequest, match="16"):
        root(b"short")


def test_namespace_names_depend_on_family_shard_and_tenant_and_on_where_one_ends() -> None:
    print_ = Family(model="m").fingerprint()
    names = [namespace_name(print_, *rest) for rest in (("", ""), ("a", ""), ("", "a"), ("a", "b"), ("ab", ""))]
    assert len(set(names)) == len(names)
    assert all(len(name) == 19 and name.startswith("kv-") for name in names)


def test_a_prefix_is_usable_up_to_the_minimum_over_its_shards() -> None:
    assert usable_prefix([5, 3, 4]) == 3
    assert usable_prefix([]) == 0


def test_keys_do_not_depend_on_the_hash_seed_of_the_process() -> None:
    program = (
        "from mooncask.client.family import Family; from mooncask.client.hashing import *\n"
        "f = Family({c: c for c in 'zyxwvutsabcd'}).fingerprint()\n"
        "e = encode_extra({c: c.encode() for c in 'zyxabc'})\n"
        "print(namespace_name(f, 'tp 0/2', 't'), [k.hex() for k in chain(root(f, b's'), range(40), 4, [e] * 10)])"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242", "random")
    }
    assert len(printed) == 1


def test_hashing_4096_tokens_takes_a_few_milliseconds_at_most() -> None:
    tokens = list(range(4096))
    seconds = []
    for _ in range(10):
        begin = time.perf_counter()
        chain(ROOT, tokens, 16)
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) < 0.005
