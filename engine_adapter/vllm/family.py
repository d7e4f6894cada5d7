"""The family of a vLLM engine: every field that must be equal for two engines to exchange KV, and which models are refused.

Takes vLLM's config objects by their attributes; imports no vLLM. Not here: what one request adds (`extras.py`).
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from mooncask.engine_adapter.vllm.kv_groups import KvGroups
from mooncask.engine_adapter.vllm.kv_planes import LAYOUT, KvPlanes
from mooncask.engine_adapter.vllm.shards import Shard
from mooncask.engine_adapter.weights import weights_digest
from mooncask.errors import ConfigError, UnsupportedModel

NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
WHOLE_PROMPT_ROPES = {"dynamic", "longrope"}
"""Rotary embeddings whose K depends on more than the token's position."""
FULL = {"FullAttentionSpec", "MLAAttentionSpec"}
"""KV cache kinds that keep every token of a request, each at its own place."""
SLIDING = "SlidingWindowSpec"
"""The kind that keeps a window of them, each at its own place until it leaves the window."""


def family_of(vllm_config: Any, planes: KvPlanes, version: str, layers: Mapping[str, Any]) -> dict[str, str]:
    """`layers`: vLLM's attention layers by name. Raises ConfigError, UnsupportedModel."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    quantisation = getattr(model.hf_config, "quantization_config", None)
    return {
        "engine": "vllm",
        "engine_version": ".".join(version.split(".")[:2]),
        "config": config_digest(model.hf_config.to_dict()),
        "weights": weights_digest(model_folder(model.model, model.revision)),
        "revision": str(model.revision or ""),
        "quantisation": f"{model.quantization or 'none'} {config_digest(_plain(quantisation))}",
        "dtype": str(model.dtype),
        "kv_dtype": str(cache.cache_dtype),
        "kv_layout": LAYOUT,
        "kv_shape": planes.shape,
        "attention": attention_kernels(layers),
        "block_tokens": str(cache.block_size),
        "parallel": _parallel(vllm_config.parallel_config),
        "draft": _draft(vllm_config),
        "lora": "none",
    }


def config_digest(fields: Mapping[str, Any]) -> str:
    """Of the effective config's canonical JSON, without what says where it came from or is a field of its own."""
    chosen = {name: value for name, value in fields.items() if name not in NOT_OF_THE_MODEL}
    return sha256(json.dumps(chosen, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()[:32]


def attention_kernels(layers: Mapping[str, Any]) -> str:
    """How the layers write their KV: backend, and on CPU the instruction set, which changes the order of bytes."""
    kinds = set()
    for layer in layers.values():
        backend = getattr(layer, "attn_backend", None)
        name = backend.get_name() if backend is not None else type(layer).__name__
        kinds.add(f"{name} {getattr(layer, 'isa', '')}".strip())
    return ", ".join(sorted(kinds))


def model_folder(model: str, revision: str | None) -> Path:
    """Where the weights are: the folder that was named, or what Hugging Face's cache has. Raises ConfigError."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except (OSError, ValueError) as exc:
        raise ConfigError(
            "--model", model, f"its weights are in no local folder, so they can't be told apart: {exc}"
        ) from exc


def shard_of(parallel: Any, tp_rank: int, pp_rank: int, mla: bool) -> Shard:
    return Shard(tp_rank, parallel.tensor_parallel_size, pp_rank, parallel.pipeline_parallel_size, mla)


def check_supported(vllm_config: Any) -> None:
    """Raises UnsupportedModel for an engine whose KV this connector can't store rightly."""
    name, parallel = vllm_config.model_config.model, vllm_config.parallel_config
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        raise UnsupportedModel(name, "context parallelism spreads a block over workers, which is not stored")
    ropes = rope_types(vllm_config.model_config.hf_config)
    if wrong := sorted(ropes & WHOLE_PROMPT_ROPES):
        raise UnsupportedModel(name, f"rope type {wrong[0]} makes K depend on the whole prompt's length")
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        raise UnsupportedModel(name, "calculate_kv_scales makes KV depend on the first prompt that the engine saw")


def groups_of(vllm_config: Any, kv_cache_config: Any) -> KvGroups:
    """The engine's KV cache groups. Raises UnsupportedModel for kinds that are not stored, by their names: recurrent and linear
    layers, chunked local attention, and whatever else is neither full attention nor a sliding window."""
    name, block_tokens = vllm_config.model_config.model, vllm_config.cache_config.block_size
    groups = [_specs(group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups]
    wrong = sorted({type(spec).__name__ for group in groups for spec in group} - FULL - {SLIDING})
    if wrong:
        why = f"KV cache of kind {', '.join(wrong)} is not stored; only full attention and sliding windows are"
        raise UnsupportedModel(name, why)
    windows = [{spec.sliding_window if type(spec).__name__ == SLIDING else 0 for spec in group} for group in groups]
    if any(len(found) != 1 for found in windows):
        raise UnsupportedModel(name, "layers of one KV cache group have different sliding windows")
    sizes = {spec.block_size for group in groups for spec in group} if len(groups) > 1 else {block_tokens}
    if sizes != {block_tokens}:
        why = f"its KV cache groups have blocks of {', '.join(map(str, sorted(sizes)))} tokens; --disable-hybrid-kv-cache-manager"
        raise UnsupportedModel(name, f"{why} makes them one, if vLLM can")
    return KvGroups(block_tokens, tuple(window for (window,) in windows))


def check_layerwise(vllm_config: Any, groups: KvGroups) -> None:
    """Raises ConfigError for an engine that must not load within a step."""
    setting, scheduling = "kv_connector_extra_config.load_mode", vllm_config.scheduler_config
    wrong = ""
    if not groups.fail_by_block:
        wrong = "one KV cache group of full attention: of other layers vLLM takes no failed blocks (this model: async)"
    elif scheduling.async_scheduling:
        wrong = "--no-async-scheduling: vLLM would go on from KV that did not come, a step before it hears of that"
    elif vllm_config.parallel_config.pipeline_parallel_size > 1:
        wrong = "no pipeline parallelism: vLLM would go on from KV that did not come, a step before it hears of that"
    if wrong:
        raise ConfigError(setting, "layerwise", f"with it, {wrong}")


def rope_types(config: Any) -> set[str]:
    """Of the text model, those of its kinds of layers; transformers has moved them from rope_scaling to rope_parameters."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    found: set[str] = set()
    for field in ("rope_parameters", "rope_scaling"):
        value = getattr(text, field, None)
        if isinstance(value, Mapping):
            by_kind = [inner for inner in value.values() if isinstance(inner, Mapping)]
            found |= {str(one.get("rope_type") or one.get("type") or "default") for one in (value, *by_kind)}
    return found


def _specs(spec: Any) -> list[Any]:
    """A group's kinds of KV: one, or one a layer."""
    inner = getattr(spec, "kv_cache_specs", None)
    return list(inner.values()) if isinstance(inner, Mapping) else [spec]


def _parallel(parallel: Any) -> str:
    return f"tp {parallel.tensor_parallel_size}, pp {parallel.pipeline_parallel_size}"


def _draft(vllm_config: Any) -> str:
    """A draft model's layers are in the KV cache too."""
    speculative = vllm_config.speculative_config
    draft = getattr(speculative, "draft_model_config", None)
    return "none" if draft is None else f"{speculative.method} {config_digest(draft.hf_config.to_dict())}"


def _plain(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else value.to_dict()
