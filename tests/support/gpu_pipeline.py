"""The pipeline part of the GPU check: a seeded random Llama on the device, prefill into a store, decode out of it.

The tokens must be those of the same model without the store, and the time to the first one is shown for both. No weights
are on disk: the family names the seed.
"""

import inspect
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from daemon_process import DaemonProcess
from transformers import LlamaConfig, LlamaForCausalLM

from mooncask.engine_adapter.transformers.decode import DecodeWorker
from mooncask.engine_adapter.transformers.engine import Engine, Options
from mooncask.engine_adapter.transformers.kv_layout import KvLayout
from mooncask.engine_adapter.transformers.loading import LoadPolicy
from mooncask.engine_adapter.transformers.messages import Request
from mooncask.engine_adapter.transformers.model import Model
from mooncask.engine_adapter.transformers.prefill import PrefillWorker
from mooncask.engine_adapter.transformers.store_link import StoreAddress, StoreLink

SEED = 20261130
ANSWER = 16
VOCABULARY = 4096


@dataclass(frozen=True, slots=True)
class PipelineSizes:
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    prompts: tuple[int, ...]
    prefill_chunk: int
    block_tokens: int
    dram_bytes: int


@dataclass(frozen=True, slots=True)
class PromptFindings:
    tokens: int
    cold_ttft_seconds: float
    prefill_seconds: float
    """With storing."""
    hit_ttft_seconds: float
    hit_tokens: int
    load_seconds: float
    same_answer: bool


def check_pipeline(device: str, sizes: PipelineSizes, tell: Callable[[str], None]) -> list[PromptFindings]:
    """Raises AssertionError when an answer is another one, or was not made from what was stored."""
    model = random_llama(device, sizes)
    with tempfile.TemporaryDirectory(prefix="mooncask-gpu-") as folder:
        settings = {"dram.capacity": str(sizes.dram_bytes), "nvme.path": "", "http.enabled": "false"}
        with DaemonProcess.start(Path(folder), settings) as daemon:
            links = [_link(daemon.socket_path, role, model) for role in ("prefill", "decode")]
            options = Options(sizes.prefill_chunk, LoadPolicy.ALWAYS, load_seconds_max=60.0)
            try:
                prefill, decode = (Engine(model, link, options) for link in links)
                for engine in (prefill, decode):
                    engine.warm_up()
                found = []
                for tokens in sizes.prompts:
                    tell(f"a prompt of {tokens} tokens")
                    found.append(_one(PrefillWorker(prefill), DecodeWorker(decode), tokens))
                return found
            finally:
                for link in links:
                    link.close()


def random_llama(device: str, sizes: PipelineSizes) -> Model:
    """Float32, TF32 off: the only setting in which two ways to the same KV give the same tokens."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=sizes.heads * sizes.head_dim,
        intermediate_size=2 * sizes.heads * sizes.head_dim,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        max_position_embeddings=2 * max(sizes.prompts),
        initializer_range=0.05,  # wide enough that the largest logits lie apart
    )
    with torch.device(device):
        module: Any = LlamaForCausalLM(config).float().eval()
    layout = KvLayout(sizes.layers, sizes.kv_heads, sizes.head_dim, sizes.block_tokens, "float32")
    family = {"engine": "transformers", "model": f"random llama {SEED}", "block_tokens": str(sizes.block_tokens)}
    argument = "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"
    return Model("random llama", module, layout, family, config.max_position_embeddings, VOCABULARY, argument)


def _link(socket: str, role: str, model: Model) -> StoreLink:
    return StoreLink(StoreAddress(socket, deadline_seconds=30.0), f"gpu check {role}", model.family, model.layout)


def _one(prefill: PrefillWorker, decode: DecodeWorker, tokens: int) -> PromptFindings:
    ids = [int(token) for token in np.random.default_rng(tokens).integers(1, VOCABULARY, tokens)]
    cold = decode.run(Request("cold", ids, max_tokens=ANSWER, use_store=False))
    stored = prefill.run(Request("prefill", ids))
    hit = decode.run(Request("hit", ids, max_tokens=ANSWER, write_back=False))
    assert not stored.faults and not hit.faults, (stored.faults, hit.faults)
    size = decode.engine.layout.block_tokens
    assert hit.loaded.total == (tokens - 1) // size * size, f"{hit.loaded.total} of {tokens} tokens were loaded"
    assert hit.tokens == cold.tokens, f"with the store {hit.tokens}, without {cold.tokens}"
    return PromptFindings(
        tokens=tokens,
        cold_ttft_seconds=cold.ttft_s,
        prefill_seconds=stored.total_s,
        hit_ttft_seconds=hit.ttft_s,
        hit_tokens=hit.loaded.total,
        load_seconds=hit.load_s,
        same_answer=hit.tokens == cold.tokens,
    )
