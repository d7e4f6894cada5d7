"""Which engines exchange KV and which models are refused, from objects with the attributes of vLLM's configs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

from tiny_model import write_tiny_llama
from transformers import AutoConfig

from mooncask.engine_adapter.vllm.extras import LoraDigests, describe
from mooncask.engine_adapter.vllm.family import check_layerwise, check_supported, family_of, groups_of
from mooncask.engine_adapter.vllm.kv_groups import KvGroups
from mooncask.engine_adapter.vllm.kv_planes import KvPlanes
from mooncask.engine_adapter.weights import weights_digest
from mooncask.errors import ConfigError, UnsupportedModel


class FullAttentionSpec:
    block_size = 32


class SlidingWindowSpec:
    block_size = 32
    sliding_window = 512


class ShortWindowSpec(SlidingWindowSpec):
    sliding_window = 64


class LargeBlockSpec(FullAttentionSpec):
    block_size = 64


ShortWindowSpec.__name__, LargeBlockSpec.__name__ = "SlidingWindowSpec", "FullAttentionSpec"


class MambaSpec: ...


class ChunkedLocalAttentionSpec: ...


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


def config(folder: Path, **changed: Any) -> Any:
    """As VllmConfig; `changed` by names such as model__dtype."""
    made = SimpleNamespace(
        model_config=SimpleNamespace(
            model=str(folder),
            revision=None,
            hf_config=AutoConfig.from_pretrained(folder),
            quantization=None,
            dtype=torch.float32,
        ),
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=32, calculate_kv_scales=False),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
        ),
        scheduler_config=SimpleNamespace(async_scheduling=False),
        speculative_config=None,
    )
    for name, value in changed.items():
        section, _, field = name.partition("__")
        setattr(getattr(made, f"{section}_config"), field, value)
    return made


def family(folder: Path, version: str = "0.32.0", isa: str = "vec", **changed: Any) -> dict[str, str]:
    planes = KvPlanes.of({"layers.0": torch.zeros(5, 2, 32, 16)}, 5, "m")
    layers = {"layers.0": SimpleNamespace(attn_backend=None, isa=isa)}
    return family_of(config(folder, **changed), planes, version, layers)


def groups(*kinds: list[type]) -> Any:
    specs = [
        SimpleNamespace(kv_cache_spec=SimpleNamespace(kv_cache_specs=dict(enumerate(kind() for kind in one))))
        for one in kinds
    ]
    return SimpleNamespace(kv_cache_groups=specs)


def test_a_patch_release_of_vllm_is_the_same_family_and_a_minor_one_is_not(folder: Path) -> None:
    assert family(folder) == family(folder, version="0.32.1+cpu")
    assert family(folder) != family(folder, version="0.33.0")


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"model__dtype": torch.bfloat16}, "dtype"),
        ({"cache__block_size": 64}, "block_tokens"),
        ({"cache__cache_dtype": "fp8"}, "kv_dtype"),
        ({"parallel__tensor_parallel_size": 2}, "parallel"),
        ({"model__quantization": "awq"}, "quantisation"),
        ({"isa": "amx"}, "attention"),
    ],
)
def test_what_changes_the_kv_changes_the_family(folder: Path, changed: dict[str, Any], field: str) -> None:
    one, other = family(folder), family(folder, **changed)
    assert {name for name in one if one[name] != other[name]} == {field}


def test_weights_that_are_nowhere_on_this_machine_stop_the_engine(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no local folder"):
        family(folder, model__model="nobody/no-such-model")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"parallel__decode_context_parallel_size": 2}, "context parallelism"),
        ({"cache__calculate_kv_scales": True}, "calculate_kv_scales"),
        ({"model__hf_config": SimpleNamespace(rope_scaling={"type": "dynamic"})}, "rope type dynamic"),
        (
            {"model__hf_config": SimpleNamespace(rope_parameters={"full_attention": {"rope_type": "longrope"}})},
            "rope type longrope",
        ),
    ],
)
def test_an_engine_whose_kv_can_not_be_stored_rightly_is_refused_by_name(
    folder: Path, changed: dict[str, Any], why: str
) -> None:
    check_supported(config(folder))
    with pytest.raises(UnsupportedModel, match=why):
        check_supported(config(folder, **changed))


@pytest.mark.parametrize(
    ("kinds", "why"),
    [
        ([[FullAttentionSpec], [MambaSpec]], "MambaSpec"),
        ([[FullAttentionSpec], [ChunkedLocalAttentionSpec]], "ChunkedLocalAttentionSpec"),
        ([[FullAttentionSpec, SlidingWindowSpec]], "different sliding windows"),
        ([[FullAttentionSpec], [LargeBlockSpec]], "blocks of 32, 64 tokens"),
    ],
)
def test_groups_that_can_not_be_stored_rightly_are_refused_by_name(
    folder: Path, kinds: list[list[type]], why: str
) -> None:
    with pytest.raises(UnsupportedModel, match=why):
        groups_of(config(folder), groups(*kinds))


@pytest.mark.parametrize(
    ("kinds", "windows"),
    [
        ([[FullAttentionSpec, FullAttentionSpec]], (0,)),
        ([[SlidingWindowSpec]], (512,)),
        ([[SlidingWindowSpec], [FullAttentionSpec], [ShortWindowSpec, ShortWindowSpec]], (512, 0, 64)),
    ],
)
def test_full_attention_and_sliding_windows_in_any_number_of_groups_are_stored(
    folder: Path, kinds: list[list[type]], windows: tuple[int, ...]
) -> None:
    assert groups_of(config(folder), groups(*kinds)) == KvGroups(32, windows)


@pytest.mark.parametrize(
    ("windows", "changed", "why"),
    [
        ((0, 512), {}, "one KV cache group of full attention"),
        ((512,), {}, "one KV cache group of full attention"),
        ((0,), {"scheduler__async_scheduling": True}, "--no-async-scheduling"),
        ((0,), {"parallel__pipeline_parallel_size": 2}, "pipeline parallelism"),
    ],
)
def test_an_engine_that_must_not_load_within_a_step_is_refused_by_the_settings_name(
    folder: Path, windows: tuple[int, ...], changed: dict[str, Any], why: str
) -> None:
    check_layerwise(config(folder), KvGroups(32))
    with pytest.raises(ConfigError, match=f"load_mode.*{why}"):
        check_layerwise(config(folder, **changed), KvGroups(32, windows))


# --- what a request adds ---------------------------------------------------------------------------------------------


def request(**fields: Any) -> Any:
    return SimpleNamespace(
        **{"lora_request": None, "mm_features": [], "prompt_embeds": None, "resumable": False, **fields}
    )


def test_an_adapter_is_told_by_its_weights_and_not_by_its_name(folder: Path, tmp_path: Path) -> None:
    loras = LoraDigests(weights_digest)
    one = describe(request(lora_request=SimpleNamespace(lora_path=str(folder))), loras)
    assert one[0].lora and one[1] == ""
    extras, reason = describe(request(lora_request=SimpleNamespace(lora_path=str(tmp_path))), loras)
    assert not extras.lora and "can't be told" in reason


def test_images_and_prompt_embeddings_are_described_by_content_and_place() -> None:
    place = SimpleNamespace(offset=3, length=5)
    image = SimpleNamespace(identifier="abc", modality="image", mm_position=place)
    extras, reason = describe(request(mm_features=[image]), LoraDigests(weights_digest))
    assert reason == "" and extras.of_block(0, 16) and not extras.of_block(16, 32)
    nameless = SimpleNamespace(identifier="", modality="image", mm_position=place)
    assert "without an identifier" in describe(request(mm_features=[nameless]), LoraDigests(weights_digest))[1]
    embeds = torch.arange(80, dtype=torch.float32).reshape(20, 4)
    one, two = (describe(request(prompt_embeds=e), LoraDigests(weights_digest))[0] for e in (embeds, embeds + 1))
    assert one.of_block(0, 16) != two.of_block(0, 16)
    assert one.of_block(32, 48) == b""


def test_a_streaming_session_does_without_the_store() -> None:
    assert "streaming" in describe(request(resumable=True), LoraDigests(weights_digest))[1]
