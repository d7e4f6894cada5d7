"""One page of ListObjects, version 1 or 2, out of blocks in key order. Pure: blocks come from a function that reads on from
a key."""

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mooncask.errors import BadParameter
from mooncask.tiers.requests import BlockInfo

KEYS_MAX = 1000
STEP = 128
"""Blocks that are read in one step: about 1 ms."""
PAST = b"\xff"
"""Sorts behind everything that can follow in a UTF-8 key."""

ReadOn = Callable[[bytes, bytes, int], list[BlockInfo]]
"""(prefix, after, limit) -> blocks whose key starts with `prefix` and sorts behind `after`."""


@dataclass(frozen=True, slots=True)
class ListRequest:
    """What is asked for. `start` is what the client named to begin behind (start-after or marker), `after` where reading
    really goes on, `token` the continuation token as it came."""

    prefix: bytes = b""
    delimiter: bytes = b""
    after: bytes = b""
    keys_max: int = KEYS_MAX
    version: int = 2
    start: bytes = b""
    token: str = ""
    url_encoded: bool = False
    with_owner: bool = False


@dataclass(slots=True)
class Page:
    """What is listed. `next_after` is where the next page goes on, empty at the end."""

    blocks: list[BlockInfo] = field(default_factory=list)
    common_prefixes: list[bytes] = field(default_factory=list)
    next_after: bytes = b""

    def __len__(self) -> int:
        return len(self.blocks) + len(self.common_prefixes)


def parse_list_request(query: Mapping[str, str], hex_keys: bool, version: int) -> ListRequest:
    """Raises BadParameter. Keys of KV namespaces are hex, and no delimiter applies to them."""
    if version == 2 and query.get("list-type") != "2":
        raise BadParameter("list-type", query.get("list-type", ""), "2 is the only one")
    delimiter = b"" if hex_keys else query.get("delimiter", "").encode()
    prefix = _key_of(query, "prefix", hex_keys)
    start = _key_of(query, "start-after" if version == 2 else "marker", hex_keys)
    token = query.get("continuation-token", "")
    return ListRequest(
        prefix=prefix,
        delimiter=delimiter,
        after=_after_of(token) if token else behind(start, prefix, delimiter),
        keys_max=keys_max_of(query, "max-keys", KEYS_MAX),
        version=version,
        start=start,
        token=token,
        url_encoded=wants_url_encoding(query),
        with_owner=version == 1 or query.get("fetch-owner", "").lower() == "true",
    )


def keys_max_of(query: Mapping[str, str], name: str, most: int) -> int:
    """How many of `most` at a time are asked for. Raises BadParameter."""
    text = query.get(name, "") or str(most)
    if not text.isascii() or not text.isdigit():
        raise BadParameter(name, text, f"a whole number from 0 to {most}")
    return min(most, int(text[:9]))


def wants_url_encoding(query: Mapping[str, str]) -> bool:
    """Raises BadParameter."""
    encoding = query.get("encoding-type", "")
    if encoding not in ("", "url"):
        raise BadParameter("encoding-type", encoding, "url is the only one")
    return bool(encoding)


def behind(start: bytes, prefix: bytes, delimiter: bytes) -> bytes:
    """Where reading goes on behind `start`: one that is itself a common prefix was listed, with all that lies in it."""
    is_common = bool(delimiter) and start.startswith(prefix) and start[len(prefix) :].find(delimiter) >= 0
    return start + PAST if is_common and _common_prefix(start, prefix, delimiter) == start else start


class Lister:
    """Fills one page. Keys and common prefixes together are at most `keys_max`; reading goes on behind a common prefix, not
    through it. `step` reads a little; whoever calls it lets others have their turn in between."""

    def __init__(self, read_on: ReadOn, request: ListRequest) -> None:
        self.page = Page()
        self._read_on = read_on
        self._request = request
        self._after = request.after

    def step(self) -> bool:
        """Whether the page is complete."""
        if not self._request.keys_max:
            return True
        blocks = self._read_on(self._request.prefix, self._after, STEP)
        for block in blocks:
            if block.key <= self._after:
                continue  # lies within the common prefix that was listed last
            if len(self.page) >= self._request.keys_max:
                self.page.next_after = self._after
                return True
            self._add(block)
        return len(blocks) < STEP

    def _add(self, block: BlockInfo) -> None:
        common = _common_prefix(block.key, self._request.prefix, self._request.delimiter)
        if common:
            self.page.common_prefixes.append(common)
            self._after = common + PAST
        else:
            self.page.blocks.append(block)
            self._after = block.key


def token_of(after: bytes) -> str:
    """An opaque continuation token."""
    return base64.urlsafe_b64encode(after).decode()


def marker_of(after: bytes, delimiter: bytes) -> bytes:
    """The key or common prefix that a page of version 1 ended with."""
    return after.removesuffix(PAST) if delimiter else after


def _after_of(token: str) -> bytes:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise BadParameter("continuation-token", token, "none that this daemon gave") from error


def _common_prefix(key: bytes, prefix: bytes, delimiter: bytes) -> bytes:
    if not delimiter:
        return b""
    found = key.find(delimiter, len(prefix))
    return b"" if found < 0 else key[: found + len(delimiter)]


def _key_of(query: Mapping[str, str], name: str, hex_keys: bool) -> bytes:
    text = query.get(name, "")
    return _hex_prefix(name, text) if hex_keys else text.encode("utf-8", "surrogateescape")


def _hex_prefix(name: str, text: str) -> bytes:
    """Whole bytes only: half a byte can't be compared to keys. Raises BadParameter."""
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise BadParameter(name, text, "KV keys begin with an even number of hex digits") from error
