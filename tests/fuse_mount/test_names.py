"""Keys and paths name each other: the escape function and its inverse, for any bytes."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mooncask.fuse_mount.names import NAME_BYTES_MAX, key_of_path, key_prefix, path_of_key

segments = st.one_of(
    st.sampled_from(
        [
            b"",
            b".",
            b"..",
            b"%",
            b"%%",
            b"%25",
            b"%2E",
            b"%+",
            b"%-",
            b"%=",
            b"a%=",
            b"a",
            b"a%",
            b"\0",
            b"...",
            b"x" * 250,
        ]
    ),
    st.binary(max_size=12).map(lambda text: text.replace(b"/", b"%")),
    st.integers(240, 800).map(lambda length: b"y" * (length - 3) + b"%+%"),
    st.integers(80, 400).map(lambda length: b"%" * length),
)
keys = st.lists(segments, min_size=1, max_size=5).map(b"/".join).filter(lambda key: 0 < len(key) <= 1024)


@pytest.mark.parametrize(
    ("key", "path"),
    [
        (b"models/llama/tokenizer.json", b"models/llama/tokenizer.json"),
        (b"a//b", b"a/%-/b"),
        (b"/a/", b"%-/a/%-"),
        (b"50%", b"50%25"),
        (b"../x/.", b"%2E%2E/x/%2E"),
        (b"x" * 253, b"x" * 253),
        (b"x" * 255, b"x" * 250 + b"%+/" + b"x" * 5),
    ],
)
def test_paths_are_those_that_the_page_shows(key: bytes, path: bytes) -> None:
    assert path_of_key(key) == path


@given(keys, st.booleans())
@example(b"%", True)
@example(b"/", True)
@example(b"%" * 200, False)
def test_every_key_comes_back_from_its_path(key: bytes, beside: bool) -> None:
    assert key_of_path(path_of_key(key, beside)) == key


@given(keys, st.booleans())
def test_every_part_of_a_path_is_a_name_that_a_file_can_have(key: bytes, beside: bool) -> None:
    for name in path_of_key(key, beside).split(b"/"):
        assert 0 < len(name) <= NAME_BYTES_MAX
        assert name not in (b".", b"..")
        assert b"\0" not in name


@given(keys, keys)
def test_two_keys_never_have_the_same_path(one: bytes, other: bytes) -> None:
    if one != other:
        assert path_of_key(one) != path_of_key(other)
        assert path_of_key(one, True) != path_of_key(other, True)
        assert path_of_key(one, True) != path_of_key(other)


@given(keys)
def test_a_folders_prefix_starts_the_keys_of_all_that_is_in_it(key: bytes) -> None:
    names = path_of_key(key).split(b"/")
    for depth in range(len(names)):
        assert key.startswith(key_prefix(names[:depth]))


@given(st.binary(min_size=1, max_size=255).filter(lambda name: not {0, 0x2F} & set(name) and name not in (b".", b"..")))
@example(b"50%")
@example(b"a%20b")
def test_any_name_that_is_typed_means_one_key_and_that_key_is_found_again(name: bytes) -> None:
    key = key_of_path(name)
    assert key_of_path(path_of_key(key)) == key


@pytest.mark.parametrize("name", [b"50%", b"a%20b", b"100%done", b"%zz"])
def test_a_name_that_is_no_escape_is_the_key_as_it_is_typed(name: bytes) -> None:
    assert key_of_path(name) == name
