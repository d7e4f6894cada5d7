"""The keys of a prompt's blocks where a salt keeps tenants apart, and may begin behind a prefix that all of them share.

The Conductor and its workers both make them: the same tokens, salt and `public_tokens` give the same keys on both sides.
Not here: chains themselves (`hashing.py`).
"""

from collections.abc import Callable, Sequence

from mooncask.client.hashing import chain, encode_extra
from mooncask.errors import BadRequest

SALT_NAME = "cache_salt"
"""The name under which the salt stands in the extra bytes of the first block that is not public."""


def prompt_keys(
    root_of: Callable[[bytes], bytes],
    tokens: Sequence[int],
    block_tokens: int,
    cache_salt: str = "",
    public_tokens: int = 0,
    hash: str = "sha256",
) -> list[bytes]:
    """Keys of the full blocks of `tokens`, 16 bytes each. `root_of(salt)` is d[0] of the namespace's chains.

    With `public_tokens` the chain begins without the salt; it enters with the first block after them, so everything from
    there on is apart, and everything before is shared. Raises BadRequest when that is no multiple of `block_tokens`.
    """
    if public_tokens % block_tokens:
        raise BadRequest(f"public_tokens = {public_tokens}: must be a multiple of the {block_tokens} tokens of a block")
    salt = cache_salt.encode()
    blocks, public = len(tokens) // block_tokens, public_tokens // block_tokens
    if not public or not salt:
        return chain(root_of(salt), tokens, block_tokens, hash=hash)
    extras = [b""] * blocks
    if public < blocks:
        extras[public] = encode_extra({SALT_NAME: salt})
    return chain(root_of(b""), tokens, block_tokens, extras, hash)
