"""One page of ListObjectsV2 out of blocks in key order. Pure: blocks come from a function that reads on from a key."""

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mooncask.errors import BadRequest
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
    prefix: bytes = b""
    delimiter: bytes = b""
    after: bytes = b""
    keys_max: int = KEYS_MAX


@dataclass(slots=True)
class Page:
    """What is listed. `next_after` is where the next page goes on, empty at the end."""

    blocks: list[BlockInfo] = field(default_factory=list)
    common_prefixes: list[bytes] = field(default_factory=list)
    next_after: bytes = b""

    def __len__(self) -> int:
        return len(self.blocks) + len(self.common_prefixes)


def parse_list_request(query: Mapping[str, str], hex_keys: bool) -> ListRequest:
    """Raises BadRequest. Keys of KV namespaces are hex, and no delimiter applies to them."""
    text = query.get("max-keys", str(KEYS_MAX))
    if not text.isascii() or not text.isdigit():
        raise BadRequest(f'max-keys = "{text[:20]}": a whole number from 0 to {KEYS_MAX}')
    token = query.get("continuation-token")
    prefix, after = query.get("prefix", ""), query.get("start-after", "")
    return ListRequest(
        prefix=_hex_prefix(prefix) if hex_keys else prefix.encode(),
        delimiter=b"" if hex_keys else query.get("delimiter", "").encode(),
        after=_after_of(token) if token else _hex_prefix(after) if hex_keys else after.encode(),
        keys_max=min(KEYS_MAX, int(text[:9])),
    )


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
        common = _common_prefix(block.key, self._request)
        if common:
            self.page.common_prefixes.append(common)
            self._after = common + PAST
        else:
            self.page.blocks.append(block)
            self._after = block.key


def token_of(after: bytes) -> str:
    """An opaque continuation token."""
    return base64.urlsafe_b64encode(after).decode()


def _after_of(token: str) -> bytes:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise BadRequest("continuation-token is none that this daemon gave") from error


def _common_prefix(key: bytes, request: ListRequest) -> bytes:
    if not request.delimiter:
        return b""
    found = key.find(request.delimiter, len(request.prefix))
    return b"" if found < 0 else key[: found + len(request.delimiter)]


def _hex_prefix(text: str) -> bytes:
    """Whole bytes only: half a byte can't be compared to keys. Raises BadRequest."""
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise BadRequest(f'"{text[:40]}" is no prefix of a KV key: an even number of hex digits is') from error
