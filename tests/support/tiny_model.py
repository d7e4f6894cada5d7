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
    import torch
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it would leave a thread behind
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = getattr(transformers, f"{architecture}Config")(**{**TINY, **overrides})
        model = getattr(transformers, f"{architecture}ForCausalLM")(config)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    return folder


def prompt_of(tokens: int, seed: int = 0) -> list[int]:
    """Random token ids of the tiny vocabulary."""
    import numpy as np

    return [int(token) for token in np.random.default_rng(seed).integers(2, TINY["vocab_size"], tokens)]
