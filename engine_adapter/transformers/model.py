"""Loads a causal model from a folder of safetensors files and says whether its KV can be stored.

What it cannot describe it refuses by name (UnsupportedModel): rotary embeddings whose K depends on the total length,
layers that are neither full attention nor attention in a sliding window (recurrent, linear, chunked), attention that looks ahead. It reads safetensors only, never pickled weights, and never the network.
"""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from mooncask.engine_adapter.transformers.family import family_of
from mooncask.engine_adapter.transformers.kv_layout import DTYPES, KvLayout, probed_layout
from mooncask.errors import ConfigError, UnsupportedModel

ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Those whose K at a position depends on the position alone; `dynamic` and `longrope` look at the whole length."""
LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
"""Of `layer_types` in a config. Chunked attention has the sliding one's cache and another mask; recurrent layers have no KV."""
PROBE_TOKEN = 1


@dataclass(frozen=True)
class Model:
    """A loaded model. Several threads may call `forward`, each with a cache of its own."""

    name: str
    module: Any
    layout: KvLayout
    family: dict[str, str]
    positions_max: int
    vocabulary: int
    cache_argument: str
    """`cache`, or `past_key_values` before transformers renamed it."""

    @torch.inference_mode()
    def forward(self, tokens: list[int], cache: Any) -> torch.Tensor:
        """Appends `tokens` to the cache; the last token's logits, float32 [vocabulary]."""
        ids = torch.tensor([tokens], device=self.module.device)
        arguments = {self.cache_argument: cache}
        out = self.module(input_ids=ids, use_cache=True, logits_to_keep=1, **arguments)
        return out.logits[0, -1].float()  # type: ignore[no-any-return]


def load_model(folder: Path, dtype: str, block_tokens: int) -> Model:
    """Raises ConfigError when the folder holds no model, UnsupportedModel when its KV cannot be stored."""
    check_request(folder, dtype, block_tokens)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    refuse_unsupported(config, folder.name)
    module: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=DTYPES[dtype], use_safetensors=True, local_files_only=True
    )
    return describe(module.eval(), folder, dtype, block_tokens)


def check_request(folder: Path, dtype: str, block_tokens: int) -> None:
    """Raises ConfigError for what is wrong whatever the model is."""
    if dtype not in DTYPES:
        raise ConfigError("--dtype", dtype, f"must be one of {', '.join(DTYPES)}")
    if not 1 <= block_tokens <= 4096:
        raise ConfigError("--block-tokens", str(block_tokens), "must be 1 to 4096")
    if not (folder / "config.json").is_file():
        raise ConfigError("--model", str(folder), "must be a folder with config.json and safetensors files")


def describe(module: Any, folder: Path, dtype: str, block_tokens: int) -> Model:
    """The Model for a loaded module: its layout by a probe, its family by its effective config and weight files."""
    argument = "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"
    text = module.config.get_text_config(decoder=True)
    layout = _probe(module, argument, folder.name, dtype, block_tokens)
    return Model(
        name=folder.name,
        module=module,
        layout=layout,
        family=family_of(module.config, folder, layout),
        positions_max=int(text.max_position_embeddings),
        vocabulary=int(text.vocab_size),
        cache_argument=argument,
    )


def refuse_unsupported(config: Any, name: str) -> None:
    """Raises UnsupportedModel for what the config alone shows. The probe finds the rest."""
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(name, "it is an encoder-decoder; only causal decoders are stored")
    text = config.get_text_config(decoder=True)
    if getattr(text, "use_bidirectional_attention", False):
        raise UnsupportedModel(name, "its tokens see later ones, so the KV of a prefix depends on what follows")
    for index, kind in enumerate(getattr(text, "layer_types", None) or ()):
        if kind not in LAYER_TYPES:
            raise UnsupportedModel(name, f"layer {index} is {kind}; only full and sliding attention are stored")
    for kind in sorted(_rope_types(text)):
        if kind not in ROPE_TYPES:
            raise UnsupportedModel(
                name, f"rope_type {kind}: K may depend on the total length; {sorted(ROPE_TYPES)} work"
            )


def _rope_types(text: Any) -> set[str]:
    """`rope_parameters` is one set of parameters, or one by layer type."""
    parameters = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    sets = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    return {str(one["rope_type"]) for one in sets if "rope_type" in one}


@torch.inference_mode()
def _probe(module: Any, argument: str, name: str, dtype: str, block_tokens: int) -> KvLayout:
    """Runs one token through a plain DynamicCache and looks at what is in it."""
    try:
        cache = DynamicCache(config=module.config)
    except (KeyError, TypeError, ValueError) as exc:
        raise UnsupportedModel(name, f"transformers makes no DynamicCache for it: {exc}") from exc
    module(input_ids=torch.tensor([[PROBE_TOKEN]], device=module.device), use_cache=True, **{argument: cache})
    return probed_layout(cache, block_tokens, dtype, name)
