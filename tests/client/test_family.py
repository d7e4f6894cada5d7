"""A family is what must be equal for KV to be exchanged: one encoding, however it was built."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncask.client.family import FIELD_BYTES_MAX, FIELDS_MAX, Difference, Family
from mooncask.errors import BadRequest

FIELDS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    max_size=6,
)


def parse(encoded: bytes) -> dict[str, str]:
    """Reads an encoding back, by docs/HASHING.md alone."""
    domain = b"mooncask family 1\0"
    assert encoded.startswith(domain)
    at = len(domain)

    def number() -> int:
        nonlocal at
        at += 4
        return int.from_bytes(encoded[at - 4 : at], "little")

    def text() -> str:
        nonlocal at
        length = number()
        at += length
        return encoded[at - length : at].decode()

    fields = {text(): text() for _ in range(number())}
    assert at == len(encoded)
    return fields


@given(FIELDS)
def test_the_encoding_can_be_read_back_so_that_unequal_families_have_unequal_encodings(fields: dict[str, str]) -> None:
    assert parse(Family(fields).encoded) == fields


@given(FIELDS)
def test_the_order_in_which_fields_are_given_does_not_matter(fields: dict[str, str]) -> None:
    backwards = dict(reversed(list(fields.items())))
    assert Family(backwards) == Family(fields)
    assert hash(Family(backwards)) == hash(Family(fields))
    assert Family(backwards).fingerprint() == Family(fields).fingerprint()


def test_fields_are_sorted_by_their_bytes() -> None:
    assert list(parse(Family({"b": "1", "B": "2", "é": "3", "a": "4"}).encoded)) == ["B", "a", "b", "é"]


def test_the_difference_names_the_first_field_that_differs() -> None:
    have, got = Family(dtype="bf16", layers="30"), Family(dtype="f32", layers="31")
    assert have.difference(got) == Difference("dtype", "bf16", "f32")
    assert have.difference(Family(have)) is None


@pytest.mark.parametrize("value", ["", "(absent)", "x"])
def test_a_field_that_only_one_family_has_is_a_difference(value: str) -> None:
    assert Family(lora=value).difference(Family()) == Difference("lora", value, "(absent)")
    assert Family().difference(Family(lora=value)) == Difference("lora", "(absent)", value)


@pytest.mark.parametrize(
    "fields",
    [
        {"": "x"},
        {"a": 1},
        {"a": "\ud800"},
        {"a": "x" * (FIELD_BYTES_MAX + 1)},
        {str(i): "" for i in range(FIELDS_MAX + 1)},
    ],
    ids=["empty name", "number", "lone surrogate", "long value", "too many"],
)
def test_what_has_no_canonical_encoding_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(BadRequest):
        Family(fields)


def test_a_family_cannot_be_changed() -> None:
    source = {"a": "1"}
    family = Family(source)
    source["a"] = "2"
    assert dict(family) == {"a": "1"}
    with pytest.raises(TypeError):
        family["a"] = "2"  # type: ignore[index]


def test_an_unknown_hash_is_refused_by_name() -> None:
    with pytest.raises(BadRequest, match="md5"):
        Family().fingerprint("md5")
