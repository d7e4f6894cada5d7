"""How keys, sizes and durations are typed and shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncask.errors import BadRequest
from mooncask.tools.keys import format_key, format_seconds, format_size, parse_key
from mooncask.tools.output import printable


@given(st.binary(min_size=1, max_size=32))
def test_a_kv_key_is_read_back_from_its_hex(key: bytes) -> None:
    assert parse_key(format_key(key, is_kv=True), is_kv=True) == key


@given(st.text(min_size=1))
def test_an_object_key_is_its_text(key: str) -> None:
    if key.isascii():
        assert parse_key(format_key(key.encode(), is_kv=False), is_kv=False) == key.encode()


def test_what_is_not_hex_is_refused_in_a_kv_namespace_by_name() -> None:
    with pytest.raises(BadRequest, match=r"key zebra: .* hex"):
        parse_key("zebra", is_kv=True)


def test_an_object_key_that_is_not_text_is_shown_with_escapes() -> None:
    assert format_key(b"a\xffb", is_kv=False) == "a\\xffb"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (512 << 20, "512 MiB"), (5 << 41, "10.0 TiB")],
)
def test_sizes_are_shown_in_the_largest_unit_that_leaves_one(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (3725, "1 h 2 min"), (90000, "1 d 1 h")]
)
def test_durations_are_shown_in_two_units(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_control_characters_of_a_key_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b[31mb\n") == "a\\x1b[31mb\\x0a"
