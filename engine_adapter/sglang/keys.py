"""What SGLang's page names are in Mooncask, and which pages of several pools can be used together. Pure.

A page's name is the hex SHA-256 of its tokens and the page before it, started with the request's LoRA and cache_salt; no
seed of Python's is in it. A name is used as SHA-256 cut to 16 bytes, which is how Mooncask's own keys are made.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from mooncask.client.family import DIGEST_BYTES
from mooncask.engine_adapter.block_store import Place

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


def key_of(page: str) -> bytes:
    """The key of a page. Names that are no SHA-256 as hexdigest writes it (SGLang's own tests use such) are hashed: other
    spellings of the same number are other names."""
    if _SHA256.fullmatch(page):
        return bytes.fromhex(page)[:DIGEST_BYTES]
    return sha256(page.encode("utf-8", "surrogatepass")).digest()[:DIGEST_BYTES]


def place_of(prefix_pages: Sequence[str] | None, page_tokens: int) -> Place:
    """Where pages stand that follow on `prefix_pages`; None is what SGLang says when it does not know."""
    if prefix_pages is None:
        return Place(tokens=page_tokens)
    parent = key_of(prefix_pages[-1]) if prefix_pages else b""
    return Place(parent, len(prefix_pages), page_tokens)


@dataclass(frozen=True, slots=True)
class PoolPages:
    """What a second pool has of the same pages. `trailing`: only so many pages before the end of a prefix are needed;
    None: all are."""

    name: str
    present: Sequence[bool]
    trailing: int | None = None


@dataclass(frozen=True, slots=True)
class UsablePages:
    """`pages` is the longest usable prefix, `lengths` every usable one (a trailing pool leaves holes), `by_pool` the longest
    that each pool allows."""

    pages: int
    lengths: list[int]
    by_pool: dict[str, int]


def usable(kv_pages: int, pools: Sequence[PoolPages]) -> UsablePages:
    """Prefix lengths of 1 to `kv_pages` pages for which every pool has what it needs."""
    lengths = list(range(1, kv_pages + 1))
    by_pool: dict[str, int] = {}
    for pool in pools:
        allowed = [n for n in range(1, kv_pages + 1) if all(pool.present[_needed_from(pool, n) : n])]
        if allowed:
            by_pool[pool.name] = allowed[-1]
        lengths = sorted(set(lengths) & set(allowed))
    return UsablePages(lengths[-1] if lengths else 0, lengths, by_pool)


def _needed_from(pool: PoolPages, length: int) -> int:
    return 0 if pool.trailing is None else max(0, length - pool.trailing)
