"""Copies between a paged KV cache and a stored block: every byte to its place, and odd caches refused by name."""

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")

from mooncask.engine_adapter.vllm.device.host import HostCopies
from mooncask.engine_adapter.vllm.kv_planes import KvPlanes
from mooncask.errors import UnsupportedModel


def cache(blocks: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.randn(blocks, 3, 32, 16, dtype=dtype)


def save(planes: KvPlanes, block_ids: Sequence[int | None], payload: Any) -> None:
    HostCopies().save([planes.copy(block_ids, payload)], None)


def load(planes: KvPlanes, block_ids: Sequence[int | None], payload: Any) -> None:
    HostCopies().load([planes.copy(block_ids, payload)], None)


def test_a_saved_block_is_every_layers_bytes_in_the_order_of_the_layers() -> None:
    tensors = {f"model.layers.{i}.attn": cache(5) for i in (10, 2, 1)}
    planes = KvPlanes.of(tensors, 5, "m")
    payload = torch.zeros(planes.block_bytes, dtype=torch.uint8)
    save(planes, [3], payload)
    expected = [tensors[f"model.layers.{i}.attn"][3].view(torch.uint8).flatten() for i in (1, 2, 10)]
    assert torch.equal(payload, torch.cat(expected))


@pytest.mark.parametrize("shape", [(5, 3, 32, 16), (2, 5, 32, 3, 8)])
def test_a_block_that_was_saved_is_loaded_into_another_engines_block_and_nothing_else_changes(
    shape: tuple[int, ...],
) -> None:
    one, other = ({f"layers.{i}": torch.randn(shape) for i in range(3)} for _ in range(2))
    before = {name: tensor.clone() for name, tensor in other.items()}
    payload = torch.zeros(KvPlanes.of(one, 5, "m").block_bytes, dtype=torch.uint8)
    save(KvPlanes.of(one, 5, "m"), [1], payload)
    load(KvPlanes.of(other, 5, "m"), [4], payload)
    dimension = 0 if shape[0] == 5 else 1
    for name, tensor in other.items():
        assert torch.equal(tensor.select(dimension, 4), one[name].select(dimension, 1))
        untouched = torch.tensor([0, 1, 2, 3])
        assert torch.equal(tensor.index_select(dimension, untouched), before[name].index_select(dimension, untouched))


def test_a_block_of_another_size_is_refused() -> None:
    planes = KvPlanes.of({"layers.0": cache(5)}, 5, "m")
    with pytest.raises(ValueError, match="bytes"):
        planes.copy([0], torch.zeros(planes.block_bytes - 1, dtype=torch.uint8))


def test_how_many_blocks_an_engine_has_is_no_part_of_its_kvs_shape() -> None:
    shapes = {KvPlanes.of({"layers.0": cache(blocks)}, blocks, "m").shape for blocks in (3, 32)}
    assert len(shapes) == 1
    assert KvPlanes.of({"layers.0": cache(5, torch.float16)}, 5, "m").shape not in shapes


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({}, "no KV cache"),
        ({"layers.0": torch.zeros(10, 3, 32, 16)}, "does not begin with 5 blocks"),
        ({"layers.0": torch.zeros(5, 32, 16)[:, :, :8]}, "one piece"),
        ({"layers.0": torch.zeros(32, 5).t()}, "one piece"),
        ({"layers.0": torch.zeros(5, 32, device="meta")}, "is on meta; only CPU memory and CUDA GPUs"),
        (dict.fromkeys(("layers.0", "layers.1"), torch.zeros(5, 16)), "share one KV cache"),
    ],
)
def test_a_cache_that_is_laid_out_in_another_way_is_refused(tensors: dict[str, Any], why: str) -> None:
    with pytest.raises(UnsupportedModel, match=why):
        KvPlanes.of(tensors, 5, "some-model")


# --- several groups --------------------------------------------------------------------------------------------------

GROUPS = [["layers.2"], ["layers.0"], ["layers.1"]]
IDS = [3, 1, 4]
"""Where a block is in each of them."""


def overlaid(seed: int) -> dict[str, Any]:
    """Three layers, one a group: their tensors lie over one another, as vLLM has it."""
    torch.manual_seed(seed)
    tensor = cache(5)
    return {f"layers.{i}": tensor.view(tensor.shape) for i in range(3)}


def test_a_block_of_several_groups_is_put_together_from_each_groups_own_block() -> None:
    tensors = overlaid(1)
    planes = KvPlanes.of(tensors, 5, "m", GROUPS)
    payload = torch.zeros(planes.block_bytes, dtype=torch.uint8)
    save(planes, IDS, payload)
    expected = [tensors[f"layers.{i}"][IDS[group]].view(torch.uint8).flatten() for i, group in ((0, 1), (1, 2), (2, 0))]
    assert torch.equal(payload, torch.cat(expected))


def test_a_group_without_a_place_for_a_block_is_left_as_it_is_and_such_a_block_is_not_saved() -> None:
    one, other = overlaid(1), overlaid(2)
    planes, before = KvPlanes.of(other, 5, "m", GROUPS), other["layers.0"].clone()
    payload = torch.zeros(planes.block_bytes, dtype=torch.uint8)
    save(KvPlanes.of(one, 5, "m", GROUPS), IDS, payload)
    load(planes, [3, None, 4], payload)
    assert torch.equal(other["layers.2"][3], one["layers.2"][3])
    assert torch.equal(other["layers.1"][4], one["layers.1"][4])
    assert torch.equal(other["layers.0"][[0, 1, 2]], before[[0, 1, 2]])
    with pytest.raises(ValueError, match="only a part"):
        save(planes, [3, None, 4], payload)


def test_layers_that_are_loaded_one_by_one_are_the_whole_block() -> None:
    one, other = ({f"layers.{i}": cache(5) for i in range(3)} for _ in range(2))
    planes = KvPlanes.of(other, 5, "m")
    payload = torch.zeros(planes.block_bytes, dtype=torch.uint8)
    save(KvPlanes.of(one, 5, "m"), [1], payload)
    for number, layer in enumerate(planes.layers):
        assert torch.equal(other[layer][2], one[layer][1]) is False
        HostCopies().load([planes.layer_copy(layer, [2], payload)], None)
        assert [torch.equal(other[name][2], one[name][1]) for name in planes.layers] == [i <= number for i in range(3)]


def test_a_layer_that_is_in_no_group_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"layers\.1 is in none"):
        KvPlanes.of({"layers.0": cache(5), "layers.1": cache(5)}, 5, "m", [["layers.0"]])
