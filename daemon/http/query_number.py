"""A whole number that a request's query gives. Pure."""

from mooncask.errors import BadParameter

_DIGITS_MAX = 12
"""Enough for every bound; Python refuses to read thousands of digits."""


def query_number(name: str, text: str, least: int, most: int) -> int:
    """Raises BadParameter for what is no number from `least` to `most`."""
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and least <= int(text) <= most:
        return int(text)
    raise BadParameter(name, text[:80], f"a whole number from {least} to {most}")
