"""Which KV an SGLang rank has: every field that must be equal before pages are exchanged, and its shard.

SGLang gives a backend the *served* name of the model, which its operator may choose freely: two models under one name must
not share. So the identity is taken from the server's arguments where there are any (path, revision, overrides), with a
digest of the weights where the path is a folder here. All arguments are read by name and may be missing.
"""

from collections.abc import Mapping
from typing import Any

from mooncask.engine_adapter.model_source import model_source

BYTES_VERSION = "1"
"""Of how pages are put into blocks here."""
SERVER_FIELDS = (
    "revision",
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "quantization_param_path",
    "json_model_override_args",
    "load_format",
)
POOL_FIELDS = (
    "layout",
    "dtype",
    "storage_format_tag",
    "head_num",
    "head_dim",
    "v_head_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "kv_cache_dim",
)
SHARDED_POOLS = ("mamba",)
"""Pools that each tensor-parallel rank has its own part of, also where the KV is the same on all of them."""


def model_fields(model_name: str | None, server: Any, engine_version: str, extra: Mapping[str, str]) -> dict[str, str]:
    """The fields that all pools of a rank share. `server` is SGLang's ServerArgs or None; `extra` are the operator's own."""
    path = str(getattr(server, "model_path", "") or model_name or "")
    return {
        "engine": "sglang",
        "engine_version": ".".join(engine_version.split(".")[:2]),
        "bytes": BYTES_VERSION,
        **model_source(path),
        **{name: _text(getattr(server, name, None)) for name in SERVER_FIELDS},
        **{f"operator.{name}": str(value) for name, value in extra.items()},
    }


def pool_fields(name: str, pool: Any, form: str, stages: int) -> dict[str, str]:
    """The fields of one host pool. `form` says how a page's pieces follow each other; `stages` is the pipeline's length."""
    fields = {field: _text(getattr(pool, field, None)) for field in POOL_FIELDS}
    fields |= {"pool": name, "pool_class": type(pool).__name__, "form": form}
    fields["block_tokens"] = str(getattr(pool, "page_size", 1))
    if stages == 1:  # the stages of a pipeline are shards of one family, and their layers are in the shard
        fields["layers"] = _text(getattr(pool, "layer_num", None))
        fields["token_bytes"] = _text(getattr(pool, "size_per_token", None))
    return fields


def shard_of(config: Any, pool_name: str) -> str:
    """`config` is a HiCacheStorageConfig. Parts of a model that all tensor-parallel ranks have alike are one shard."""
    replicated = config.is_mla_model and pool_name not in SHARDED_POOLS
    parts = ["tp any" if replicated else f"tp {config.tp_rank}/{config.tp_size}"]
    for word, rank, size in (
        ("pp", config.pp_rank, config.pp_size),
        ("cp", config.attn_cp_rank, config.attn_cp_size),
        ("dcp", config.dcp_rank, config.dcp_size),
    ):
        if size > 1:
            parts.append(f"{word} {rank}/{size}")
    return ", ".join(parts)


def _text(value: Any) -> str:
    return "" if value is None else str(value)
