"""Which models' KV is stored, and how the others are refused: by name, saying why."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

from pathlib import Path
from typing import Any

from tiny_model import TINY, write_tiny, write_tiny_llama
from transformers import DynamicCache, LlamaConfig
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    QuantizedLayer,
    StaticLayer,
)

from mooncask.engine_adapter.transformers.kv_layout import probed_layout
from mooncask.engine_adapter.transformers.model import load_model, refuse_unsupported
from mooncask.errors import ConfigError, UnsupportedModel


def llama_with(rope: dict[str, Any]) -> Any:
    return LlamaConfig(**{**TINY, "rope_parameters": {"rope_theta": 10000.0, **rope}})


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "an unheard-of one"])
def test_rotary_embeddings_that_may_depend_on_the_total_length_are_refused(kind: str) -> None:
    config = llama_with({"rope_type": "default"})
    config.rope_parameters["rope_type"] = kind
    with pytest.raises(UnsupportedModel, match=f"model tiny: rope_type {kind}"):
        refuse_unsupported(config, "tiny")


def test_they_are_refused_too_when_they_hide_in_the_parameters_of_one_layer_type() -> None:
    config = llama_with({"rope_type": "default"})
    config.rope_parameters = {"full_attention": {"rope_type": "dynamic"}}
    with pytest.raises(UnsupportedModel, match="rope_type dynamic"):
        refuse_unsupported(config, "tiny")


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024},
    ],
)
def test_rotary_embeddings_that_depend_on_the_position_alone_are_taken(rope: dict[str, Any]) -> None:
    refuse_unsupported(llama_with(rope), "tiny")


def test_layers_with_a_sliding_window_are_taken_and_their_windows_known(tmp_path: Path) -> None:
    folder = write_tiny("Mistral", tmp_path / "sliding", sliding_window=32)
    assert load_model(folder, "float32", 16).layout.windows == (32, 32, 32)
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    folder = write_tiny("Qwen2", tmp_path / "hybrid", use_sliding_window=True, sliding_window=32, layer_types=kinds)
    assert load_model(folder, "float32", 16).layout.windows == (0, 32, 0)


@pytest.mark.parametrize("kind", ["linear_attention", "conv", "chunked_attention", "hybrid", "mamba"])
def test_other_kinds_of_layers_are_refused_by_their_names(kind: str) -> None:
    config = llama_with({"rope_type": "default"})
    config.layer_types = ["full_attention", kind, "full_attention"]
    with pytest.raises(UnsupportedModel, match=f"model tiny: layer 1 is {kind}"):
        refuse_unsupported(config, "tiny")


def test_a_real_recurrent_model_is_refused(tmp_path: Path) -> None:
    kinds = ["linear_attention", "linear_attention", "full_attention"]
    config = transformers.Qwen3NextConfig(**{**TINY, "layer_types": kinds})
    with pytest.raises(UnsupportedModel, match="layer 0 is linear_attention"):
        refuse_unsupported(config, "next")


def test_attention_that_looks_ahead_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="depends on what follows"):
        refuse_unsupported(transformers.Gemma3TextConfig(use_bidirectional_attention=True), "embedder")


@pytest.mark.parametrize(
    "layer",
    [
        LinearAttentionLayer(),
        type("NovelWindow", (DynamicSlidingWindowLayer,), {})(8),
        StaticLayer(8),
        type("HalfByteLayer", (QuantizedLayer,), {"_quantize": None, "_dequantize": None})(),
        type("Novel", (DynamicLayer,), {})(),
    ],
)
def test_any_other_cache_layer_is_refused_by_its_name(layer: Any) -> None:
    cache = DynamicCache()
    cache.layers = [layer]
    with pytest.raises(UnsupportedModel, match=f"keeps a {type(layer).__name__}"):
        probed_layout(cache, 16, "float32", "tiny")


@pytest.mark.parametrize("kind", ["Mistral", "Qwen2", "Qwen3"])
def test_other_llama_like_models_are_taken(kind: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"sliding_window": None} if kind == "Mistral" else {}
    layout = load_model(write_tiny(kind, tmp_path / kind, **fields), "float32", 16).layout
    assert (layout.layers, layout.kv_heads, layout.head_dim) == (3, 2, 16)


def test_an_encoder_decoder_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="encoder-decoder"):
        refuse_unsupported(transformers.T5Config(), "t5")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_model(tmp_path, "float32", 16)


@pytest.mark.parametrize(
    ("dtype", "block_tokens", "option"), [("int8", 16, "--dtype"), ("float32", 0, "--block-tokens")]
)
def test_impossible_options_are_refused_by_name(tmp_path: Path, dtype: str, block_tokens: int, option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        load_model(write_tiny_llama(tmp_path / "tiny"), dtype, block_tokens)
