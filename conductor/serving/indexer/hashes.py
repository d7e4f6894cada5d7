"""The rolling hashes by which routers name prefixes, as Mooncake's indexer and Dynamo define them. Pure.

local[i] = XXH3-64(tokens of block i as u32 little endian, seed); sequence[0] = local[0], and then
sequence[i] = XXH3-64(sequence[i-1] and local[i], each 8 bytes little endian, seed).
"""

import sys
from array import array
from collections.abc import Sequence

import xxhash

from mooncask.errors import BadField

U32 = "I" if array("I").itemsize == 4 else "L"


def sequence_hashes(tokens: Sequence[int], block_tokens: int, seed: int, parent: int | None = None) -> list[int]:
    """Of the full blocks of `tokens`, 64 bits each; `parent` is that of the block before the first. Raises BadField."""
    try:
        packed = array(U32, tokens)
    except (OverflowError, TypeError) as exc:
        raise BadField("token_ids", "must be numbers from 0 to 4294967295") from exc
    if sys.byteorder == "big":
        packed.byteswap()
    data, step, found = packed.tobytes(), 4 * block_tokens, list[int]()
    for begin in range(0, len(data) - step + 1, step):
        parent = following(parent, xxhash.xxh3_64_intdigest(data[begin : begin + step], seed), seed)
        found.append(parent)
    return found


def following(before: int | None, local: int, seed: int) -> int:
    if before is None:
        return local
    return int(xxhash.xxh3_64_intdigest(before.to_bytes(8, "little") + local.to_bytes(8, "little"), seed))
