"""Prefix hashing: from tokens to block keys. docs/HASHING.md is the specification, with test vectors.

Equal digests mean equal families, salts and whole prefixes. Nothing depends on PYTHONHASHSEED, on the machine's byte
order or on the width of the caller's integers. Not here: what a family must contain (`family.py` and the adapters).
"""

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from mooncask.client.family import DIGEST_BYTES, digest, length_prefixed
from mooncask.errors import BadRequest

Tokens = Sequence[int] | npt.NDArray[Any]

U32 = "I" if array("I").itemsize == 4 else "L"
"""`array`'s name of 32 bits here."""
_NAMESPACE_DOMAIN = b"mooncask namespace 1\0"


def root(fingerprint: bytes, salt: bytes = b"", hash: str = "sha256") -> bytes:
    """d[0] of a chain: H(fingerprint, u32 length, salt). `salt` is the tenant's salt followed by the request's cache_salt."""
    if len(fingerprint) != DIGEST_BYTES:
        raise BadRequest(f"a family fingerprint has {DIGEST_BYTES} bytes; this one has {len(fingerprint)}")
    return digest(fingerprint + length_prefixed(salt), hash)


def chain(
    root: bytes,
    tokens: Tokens,
    block_tokens: int,
    extras: Sequence[bytes] | None = None,
    hash: str = "sha256",
) -> list[bytes]:
    """The keys of the full blocks of `tokens`, 16 bytes each; a last block that is not full has none.

    `root` is d[0] of a chain, or the digest of the block before, to go on from there. `extras[i]` is what else changes
    block i's KV (`encode_extra`), empty for nothing; there is one an item for every full block, and may be one for the
    block that is not full. Raises BadRequest for tokens outside [0, 2^32) and for a wrong number of extras.
    """
    if block_tokens < 1:
        raise BadRequest(f"block_tokens = {block_tokens}: at least 1 token makes a block")
    data = _token_bytes(tokens)
    step = 4 * block_tokens
    blocks = len(data) // step
    tails = _tails(extras, blocks, has_partial=len(data) % step > 0)
    found, before = [], root
    for i in range(blocks):
        before = digest(b"".join((before, data[i * step : (i + 1) * step], tails[i] if tails else b"")), hash)
        found.append(before)
    return found


def encode_extra(items: Mapping[str, bytes]) -> bytes:
    """Canonical bytes of what else changes a block's KV (a LoRA id, image digests with offsets, a prompt-embeds digest).

    Sorted by name, each name and value behind its u32 length; no items are no bytes.
    """
    pairs = sorted((name.encode(), value) for name, value in items.items())
    return b"".join(length_prefixed(name) + length_prefixed(value) for name, value in pairs)


def namespace_name(fingerprint: bytes, shard: str = "", tenant: str = "") -> str:
    """`kv-<16 hex>`: what a KV namespace is called when its operator gave it no name. Always by SHA-256."""
    parts = (fingerprint, shard.encode(), tenant.encode())
    return "kv-" + sha256(_NAMESPACE_DOMAIN + b"".join(map(length_prefixed, parts))).hexdigest()[:16]


def usable_prefix(blocks_by_shard: Iterable[int]) -> int:
    """Blocks of a prefix that can be used when the shards have these many: all shards must have a block. 0 for no shards."""
    return min(blocks_by_shard, default=0)


def _tails(extras: Sequence[bytes] | None, blocks: int, has_partial: bool) -> Sequence[bytes] | None:
    if extras is None:
        return None
    if len(extras) != blocks and not (has_partial and len(extras) == blocks + 1):
        raise BadRequest(f"{len(extras)} extras for {blocks} full blocks; give one a block, empty where there is none")
    return extras


def _token_bytes(tokens: Tokens) -> memoryview:
    """Tokens as u32 little endian."""
    if isinstance(tokens, list) and tokens and (packed := _packed(tokens)) is not None:
        return packed
    given = np.asarray(tokens)
    if given.size == 0:
        return memoryview(b"")
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise BadRequest(f"tokens must be a flat sequence of integers in [0, 2^32); got {given.dtype} {given.shape}")
    low, high = int(given.min()), int(given.max())
    if low < 0 or high >= 1 << 32:
        raise BadRequest(f"token {low if low < 0 else high} lies outside [0, 2^32)")
    return memoryview(given.astype("<u4").tobytes())


def _packed(tokens: list[int]) -> memoryview | None:
    """The same for a list, several times faster than by way of numpy; None for what is better looked at closely."""
    if isinstance(tokens[0], bool):
        return None
    try:
        packed = array(U32, tokens)
    except (OverflowError, TypeError):
        return None
    if sys.byteorder == "big":
        packed.byteswap()
    return memoryview(packed).cast("B")
