"""What counts as a bearer token, for every door alike."""

import pytest

from mooncask.client.bearer import bears, given_token


@pytest.mark.parametrize("header", ["Bearer abc", "bearer abc", "BEARER  abc ", "Bearer abc\t"])
def test_the_scheme_may_be_written_in_any_case(header: str) -> None:
    assert given_token(header) == "abc"
    assert bears(header, "abc")


@pytest.mark.parametrize(
    "header", ["", "abc", "Basic abc", "Bearer", "Bearerabc", "Bearer ab", "Bearer abcd", "Bearer \udcff"]
)
def test_anything_else_carries_no_secret(header: str) -> None:
    assert not bears(header, "abc")


def test_where_there_is_no_secret_no_header_is_needed_and_no_other_taken() -> None:
    assert bears("", "")
    assert bears("Bearer", "")
    assert not bears("Bearer abc", "")
