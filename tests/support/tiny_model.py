"""A seeded random Llama of a few hundred kilobytes in the form that workers load: fast, and the same everywhere."""

from pathlib import Path
from typing import Any

TINY: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "initializer_range": 0.3,  # wide enough that the largest logits lie apart and greedy tokens have no ties
}


def write_tiny_llama(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Saves a random Llama as config.json and model.safetensors in `folder` and returns the folder."""
    return write_tiny("Llama", folder, seed, **overrides)


def write_tiny(architecture: str, folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """The same of another architecture that transformers knows, such as `Qwen2`."""
    return _write(f"{architecture}Config", f"{architecture}ForCausalLM", folder, seed, overrides)


def write_tiny_gemma3(folder: Path, window: int, seed: int = 0, **overrides: Any) -> Path:
    """A hybrid: of four layers the third sees everything, the others the last `window` tokens."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    shape = {"num_hidden_layers": 4, "num_key_value_heads": 1, "layer_types": kinds, "sliding_window": window}
    return _write("Gemma3TextConfig", "Gemma3ForCausalLM", folder, seed, {**shape, **overrides})


def _write(config_class: str, model_class: str, folder: Path, seed: int, overrides: dict[str, Any]) -> Path:
    import torch
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it would leave a thread behind
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = getattr(transformers, config_class)(**{**TINY, **overrides})
        model = getattr(transformers, model_class)(config)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    return folder


def prompt_of(tokens: int, seed: int = 0) -> list[int]:
    """Random token ids of the tiny vocabulary."""
    import numpy as np

    return [int(token) for token in np.random.default_rng(seed).integers(2, TINY["vocab_size"], tokens)]
