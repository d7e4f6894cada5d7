"""Which KV an LMCache instance has, and what its chunks are called. Pure; LMCache's objects are read by attribute.

A chunk's key in LMCache names model, ranks and dtype, but neither the weights nor the layout; those are in the family. All
ranks share one namespace: the rank is in the key, and LMCache itself looks chunks of rank 0 up for others (MLA).
"""

import logging
import os
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from mooncask.client.family import DIGEST_BYTES
from mooncask.engine_adapter.model_source import model_source

log = logging.getLogger(__name__)

BYTES_VERSION = "1"
"""Of how chunks are put into blocks here."""


def key_of(chunk: str) -> bytes:
    """The key of a chunk from LMCache's `CacheEngineKey.to_string()`."""
    return sha256(chunk.encode()).digest()[:DIGEST_BYTES]


def family_of(config: Any, metadata: Any, lmcache_version: str, engine_version: str, seed: str) -> dict[str, str]:
    """`config` is an LMCacheEngineConfig, `metadata` an LMCacheMetadata, `seed` what `hash_seed` says."""
    return {
        "engine": "lmcache",
        "engine_version": ".".join(lmcache_version.split(".")[:2]),
        "served_by": engine_version,
        "bytes": BYTES_VERSION,
        **model_source(str(metadata.model_name)),
        "dtype": str(metadata.kv_dtype),
        "kv_shape": " x ".join(map(str, metadata.kv_shape)),
        "block_tokens": str(metadata.chunk_size),
        "mla": str(bool(metadata.use_mla)),
        "layerwise": str(bool(config.use_layerwise)),
        "serde": str(config.remote_serde),
        "chunk_hash": f"{config.pre_caching_hash_algorithm}, {seed}",
    }


def hash_seed(algorithm: str, environment: Mapping[str, str], nonce: str = "") -> str:
    """What chunk hashes depend on beside the tokens. LMCache's default `builtin` is Python's own hash: without a fixed
    PYTHONHASHSEED other processes have other ones, and then this process shares with nobody (`nonce` tells it apart)."""
    seed = environment.get("PYTHONHASHSEED", "")
    if seed.isdigit():
        return f"seed {seed}"
    if algorithm != "builtin" and not seed:
        return "no seed"
    log.warning(
        "mooncask: LMCache's chunk hash %r is another one in each process: nothing is shared and nothing found again "
        "after a restart. Set PYTHONHASHSEED=0 for every process, or pre_caching_hash_algorithm to sha256_cbor",
        algorithm,
    )
    return f"random seed {nonce or os.urandom(8).hex()}"
