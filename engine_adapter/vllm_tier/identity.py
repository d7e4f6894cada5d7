"""Which chunks a vLLM engine offloads, and what they are called. Takes vLLM's OffloadingConfig by its attributes; no vLLM.

A chunk's name is vLLM's block hash with the KV cache group. The hash covers tokens, LoRA, multimodal inputs and cache_salt,
and starts with a seed: engines with different seeds have no chunk in common, so the seed is a field of the family and such
engines have a namespace each. What vLLM does not tell a tier is which attention kernels write the KV.
"""

import logging
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from mooncask.client.family import DIGEST_BYTES
from mooncask.engine_adapter.model_source import model_source

log = logging.getLogger(__name__)

BYTES_VERSION = "1"
"""Of how chunks are put into blocks here."""


def key_of(chunk: bytes) -> bytes:
    """The key of a chunk from vLLM's OffloadKey."""
    return sha256(bytes(chunk)).digest()[:DIGEST_BYTES]


def family_of(config: Any, row_bytes: int, version: str, seed: str, extra: Mapping[str, str]) -> dict[str, str]:
    """`row_bytes` is a chunk's length for all workers of the engine; `extra` are the operator's own fields."""
    return {
        "engine": "vllm offloading",
        "engine_version": ".".join(version.split(".")[:2]),
        "bytes": BYTES_VERSION,
        **model_source(str(config.model.name)),
        "dtype": str(config.model.dtype),
        "block_tokens": str(config.cache.tokens_per_hash),
        "blocks_per_chunk": str(config.cache.blocks_per_chunk),
        "chunk_bytes": str(row_bytes),
        "groups": _groups(config.groups),
        "parallel": _parallel(config),
        "layout": f"{config.kv_cache_layout or ''} {'canonical' if config.canonical_layout else 'direct'}",
        "hash_seed": sha256(seed.encode()).hexdigest()[:16],
        **{f"operator.{name}": str(value) for name, value in extra.items()},
    }


def warn_of_seed(algorithm_is_safe: bool, seed_is_set: bool) -> None:
    """Says what to set when this engine's hashes are its own: it shares with nobody and finds nothing after a restart."""
    if not algorithm_is_safe and not seed_is_set:
        log.warning(
            "mooncask: vLLM starts this hash with a random seed in each process: nothing is shared and nothing found "
            "again after a restart. Use --prefix-caching-hash-algo sha256, or set PYTHONHASHSEED=0 for every engine"
        )


def _groups(groups: Any) -> str:
    """Layers by group: other groups put other layers' KV in a chunk of the same length."""
    named = [f"{group.tokens_per_block}:{','.join(group.layer_names)}" for group in groups]
    return sha256(";".join(named).encode()).hexdigest()[:16]


def _parallel(config: Any) -> str:
    """How KV is spread over workers, unless a chunk is the same however it is spread."""
    parallel = config.parallel
    if parallel.is_parallelism_agnostic or config.replicated_layout:
        return "any"
    sizes = (("tp", parallel.tp_size), ("pp", parallel.pp_size), ("pcp", parallel.pcp_size), ("dcp", parallel.dcp_size))
    return " ".join(f"{word} {size}" for word, size in sizes)
