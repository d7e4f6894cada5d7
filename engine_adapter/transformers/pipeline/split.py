"""A part of a model's layers as a module of its own: the library's own forward, with all other layers passed through.

The list of layers keeps its length and every layer its number, so whatever a model looks up by a layer's number (masks, kinds
of attention, rotary embeddings) stays what it is in the whole model, and the result is the same to the bit. Only the part's own
weights are read. What cannot be run like this is refused by name (UnsupportedModel). Not here: processes, the store.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from mooncask.engine_adapter.transformers.kv_layout import (
    DTYPES,
    BufferLayer,
    KvBuffer,
    KvLayout,
    SlidingBufferLayer,
)
from mooncask.engine_adapter.transformers.model import Model, check_request, describe, refuse_unsupported
from mooncask.errors import ConfigError, UnsupportedModel

CHECKED_TOKENS = 3


def layer_ranges(layers: int, stages: int) -> list[range]:
    """Each stage's layers, as even as they go; the first stages have one more. Raises ConfigError for more stages than layers."""
    if not 1 <= stages <= layers:
        raise ConfigError("--pipeline", str(stages), f"must be 1 to {layers}, the layers of the model")
    each, more = divmod(layers, stages)
    edges = [0]
    for stage in range(stages):
        edges.append(edges[-1] + each + (stage < more))
    return [range(edges[stage], edges[stage + 1]) for stage in range(stages)]


class PassThrough(nn.Module):
    """In place of a layer that another process has."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        if kind := getattr(layer, "attention_type", None):
            self.attention_type = kind

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return hidden_states


def described(folder: Path, dtype: str, block_tokens: int) -> Model:
    """The model without any weights: its layout, family and limits. Raises ConfigError, UnsupportedModel."""
    check_request(folder, dtype, block_tokens)
    model = describe(_skeleton(folder, dtype), folder, dtype, block_tokens)
    decoder = _decoder(model.module, model.name)
    _check_nothing_else_changes_hidden_states(folder, dtype, decoder.config.hidden_size)
    return model


@dataclass(frozen=True)
class Part:
    """The layers `layers` of a model. `run` may be called by one thread at a time."""

    decoder: Any
    layers: range
    layout: KvLayout
    """Of the whole model."""
    cache_argument: str
    weight_bytes: int

    @property
    def own_layout(self) -> KvLayout:
        """That of a buffer for these layers alone."""
        whole = self.layout
        windows = whole.windows[self.layers.start : self.layers.stop]
        return KvLayout(len(self.layers), whole.kv_heads, whole.head_dim, whole.block_tokens, whole.dtype, windows)

    @torch.inference_mode()
    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        """[1, tokens, hidden]; for the part with layer 0 only."""
        found: torch.Tensor = self.decoder.embed_tokens(torch.tensor([list(tokens)]))
        return found

    @torch.inference_mode()
    def run(self, hidden: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """[1, tokens, hidden] of what comes behind the cache's tokens, through these layers; their K and V go into the cache."""
        out = self.decoder(inputs_embeds=hidden, use_cache=True, **{self.cache_argument: cache})
        found: torch.Tensor = out.last_hidden_state
        return found

    def cache(self, buffer: KvBuffer, filled_tokens: int, written: Callable[[int], None]) -> DynamicCache:
        """A cache whose first tokens are those in the buffer. Layers of others look as long as ours, and are never written."""
        cache = DynamicCache()
        windows = self.layout.windows or (0,) * self.layout.layers
        for layer, window in enumerate(windows):
            place = layer - self.layers.start if layer in self.layers else 0
            cache.layers.append(
                SlidingBufferLayer(buffer, place, filled_tokens, written, window)
                if window
                else BufferLayer(buffer, place, filled_tokens, written)
            )
        cache.layer_class_to_replicate = None
        return cache


def load_part(folder: Path, dtype: str, layout: KvLayout, layers: range) -> Part:
    """Reads these layers, and the embedding with the first. Raises ConfigError, UnsupportedModel."""
    module = _skeleton(folder, dtype)
    name = folder.name
    decoder = _decoder(module, name)
    _leave_only(decoder, layers)
    _make_what_no_file_holds(module, decoder)
    size = _load_weights(module, decoder, folder, DTYPES[dtype])
    argument = _cache_argument(module)
    return Part(decoder.eval(), layers, layout, argument, size)


# --- parts ---


def _skeleton(folder: Path, dtype: str) -> Any:
    """The whole model without memory for its weights."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    refuse_unsupported(config, folder.name)
    if getattr(config, "quantization_config", None) is not None:
        raise UnsupportedModel(folder.name, "it is quantised; a pipeline reads plain weights only")
    with torch.device("meta"):
        module: Any = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype])  # type: ignore[no-untyped-call]
    return module.eval()


def _cache_argument(module: Any) -> str:
    import inspect

    return "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"


def _decoder(module: Any, name: str) -> Any:
    """What has the layers. Raises UnsupportedModel when it is not built of an embedding, a list of layers and a norm."""
    decoder = module.get_decoder() if hasattr(module, "get_decoder") else None
    for part in ("embed_tokens", "layers", "norm", "rotary_emb"):
        if not isinstance(getattr(decoder, part, None), nn.Module):
            raise UnsupportedModel(name, f"it has no {part} where a pipeline of its layers needs one")
    return decoder


def _leave_only(decoder: Any, layers: range) -> None:
    """No norm either: what comes behind the last layer is for logits, and a prefill makes none."""
    for index, layer in enumerate(decoder.layers):
        if index not in layers:
            decoder.layers[index] = PassThrough(layer)
    if 0 not in layers:
        decoder.embed_tokens = nn.Identity()
    decoder.norm = nn.Identity()


def _make_what_no_file_holds(module: Any, decoder: Any) -> None:
    """Buffers that are worked out from the config, such as rotary frequencies, by the library's own code."""
    for part in decoder.modules():
        if part._non_persistent_buffers_set:  # an embedding with a scale gets its weight from the file afterwards
            part.to_empty(device="cpu", recurse=False)
            module._init_weights(part)


def _load_weights(module: Any, decoder: Any, folder: Path, dtype: torch.dtype) -> int:
    """Bytes of memory that they take."""
    prefix = next(path for path, part in module.named_modules() if part is decoder)
    wanted = dict(decoder.state_dict())
    found: dict[str, torch.Tensor] = {}
    for name, tensor in _tensors(folder, prefix, set(wanted)):
        if tensor.shape != wanted[name].shape:
            raise UnsupportedModel(folder.name, f"{name} has the shape {list(tensor.shape)} in its file")
        found[name] = tensor.to(dtype if tensor.is_floating_point() else tensor.dtype).clone()
    if missing := sorted(set(wanted) - set(found)):
        raise UnsupportedModel(
            folder.name, f"{missing[0]} is not in its files under that name; a pipeline converts none"
        )
    decoder.load_state_dict(found, assign=True)
    for name, tensor in [*decoder.named_parameters(), *decoder.named_buffers()]:
        if tensor.is_meta:
            raise UnsupportedModel(folder.name, f"{name} is neither in its files nor made by the library alone")
    return sum(tensor.nbytes for tensor in found.values())


def _tensors(folder: Path, prefix: str, wanted: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Those of `wanted` (names within the decoder) that are in the files; no other tensor's bytes are read."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for stored in file.keys():  # noqa: SIM118  # it is no mapping
                name = stored.removeprefix(f"{prefix}.") if prefix else stored
                if name in wanted:
                    yield name, file.get_tensor(stored)


@torch.inference_mode()
def _check_nothing_else_changes_hidden_states(folder: Path, dtype: str, width: int) -> None:
    """A part begins with what the layers before it left: a model that scales what it gets would do so once a part."""
    module = _skeleton(folder, dtype)
    decoder = _decoder(module, folder.name)
    _leave_only(decoder, range(0))
    _make_what_no_file_holds(module, decoder)
    hidden = torch.linspace(-2, 2, CHECKED_TOKENS * width).reshape(1, CHECKED_TOKENS, -1).to(DTYPES[dtype])
    out = decoder(inputs_embeds=hidden, use_cache=False).last_hidden_state
    if not torch.equal(out, hidden):
        raise UnsupportedModel(folder.name, "its forward changes hidden states outside of its layers")
