"""From a prompt to the keys of its blocks, in one namespace or in another: hashing runs in a thread."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from mooncask.client import hashing
from mooncask.client.control import WhyRequest
from mooncask.client.family import Family
from mooncask.daemon.insight.blocks import key_of
from mooncask.daemon.namespace_door import block_tokens, tenant_salt
from mooncask.errors import BadRequest
from mooncask.tiers.namespace import Namespace

TOKENS_MAX = 1 << 20
KEYS_MAX = 1 << 16
_FIRST_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class AskedChain:
    """The whole blocks of a prompt by key. `tail_tokens` are behind the last whole block; 0 when keys were given."""

    keys: list[bytes]
    block_tokens: int
    tail_tokens: int


async def asked_chain(namespace: Namespace, request: WhyRequest) -> AskedChain:
    """Raises BadRequest for a request with neither or both, or with too much; NoSuchBlock for what is no key."""
    if bool(request.tokens) == bool(request.keys):
        raise BadRequest("either tokens or keys are wanted, not both and not neither")
    if len(request.tokens) > TOKENS_MAX or len(request.keys) > KEYS_MAX:
        raise BadRequest(f"at most {TOKENS_MAX} tokens or {KEYS_MAX} keys are looked at")
    size = block_tokens(namespace.spec.family)
    if request.keys:
        return AskedChain([key_of(namespace, key) for key in request.keys], size, 0)
    if namespace.spec.kind != "kv" or not size:
        raise BadRequest(f"namespace {namespace.spec.name} does not say how many tokens a block has; give keys")
    root = root_of(namespace, request.cache_salt)
    keys = await asyncio.to_thread(hashing.chain, root, request.tokens, size, None, hash_of(namespace))
    return AskedChain(keys, size, len(request.tokens) % size)


async def usable_blocks(namespace: Namespace, tokens: Sequence[int], cache_salt: str) -> int:
    """How many blocks of the prompt, from its beginning, this namespace has. Hashes little more than it finds."""
    size, hash_name = block_tokens(namespace.spec.family), hash_of(namespace)
    before, found, wanted = root_of(namespace, cache_salt), 0, _FIRST_BLOCKS
    while size and found < len(tokens) // size:
        piece = tokens[found * size : (found + wanted) * size]
        keys = await asyncio.to_thread(hashing.chain, before, piece, size, None, hash_name)
        here = next((i for i, key in enumerate(keys) if key not in namespace.index), len(keys))
        found += here
        if here < len(keys):
            break
        before, wanted = keys[-1], 2 * wanted
    return found


def root_of(namespace: Namespace, cache_salt: str) -> bytes:
    """d[0] of the chains of the namespace's own tenant with this salt."""
    salt = tenant_salt(namespace.spec.tenant) + cache_salt.encode()
    return hashing.root(namespace.spec.fingerprint, salt, hash_of(namespace))


def hash_of(namespace: Namespace) -> str:
    """Which hash the namespace was opened with: its fingerprint is the family's by that one."""
    spec = namespace.spec
    return "xxh3_128" if spec.fingerprint == Family(spec.family).fingerprint("xxh3_128") else "sha256"
