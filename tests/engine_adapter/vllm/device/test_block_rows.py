"""Blocks of a tensor as rows of bytes: the layouts that vLLM's GPU backends use, told apart and copied in one piece each."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")

from mooncask.engine_adapter.vllm.device.block_rows import block_rows, joined, memory_order
from mooncask.engine_adapter.vllm.device.host import HostCopies
from mooncask.engine_adapter.vllm.kv_planes import KvPlanes

BLOCKS, HEADS, TOKENS, WIDTH, LAYERS = 5, 3, 4, 6, 3


def numbered(*shape: int) -> Any:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)


def heads_inside() -> Any:
    """Shown as [blocks, heads, tokens, width], in memory a token's heads lie together."""
    return numbered(BLOCKS, TOKENS, HEADS, WIDTH).transpose(1, 2)


def layers_inside() -> list[Any]:
    """A block of all layers in one piece (vLLM's BLHNC): each layer's tensor has holes between its blocks."""
    return list(numbered(BLOCKS, LAYERS, HEADS, TOKENS, WIDTH).unbind(1))


def as_in_memory(tensor: Any, block: int) -> Any:
    """The block's bytes, found by sorting its elements by where they are."""
    one = tensor[block].flatten().sort().values  # `numbered`: the values are the places
    return one.view(torch.uint8)


@pytest.mark.parametrize("tensor", [numbered(BLOCKS, HEADS, TOKENS, WIDTH), heads_inside(), layers_inside()[1]])
def test_a_row_is_a_blocks_bytes_as_they_lie_in_memory(tensor: Any) -> None:
    rows = block_rows(tensor)
    assert rows is not None and rows.shape == (BLOCKS, 4 * HEADS * TOKENS * WIDTH)
    assert all(torch.equal(rows[block], as_in_memory(tensor, block)) for block in range(BLOCKS))
    rows[2].zero_()
    assert not torch.any(tensor[2]) and torch.all(tensor[3]), "a row is the memory itself"


@pytest.mark.parametrize(
    "tensor",
    [
        numbered(TOKENS, BLOCKS).t(),
        numbered(HEADS, BLOCKS, TOKENS).transpose(0, 1),
        numbered(BLOCKS, HEADS, TOKENS)[:, :, :2],
        numbered(1, WIDTH).expand(BLOCKS, WIDTH),
    ],
)
def test_blocks_that_lie_in_several_pieces_or_over_one_another_have_no_rows(tensor: Any) -> None:
    assert block_rows(tensor) is None


def test_a_dimension_of_one_lies_anywhere_and_a_single_block_too() -> None:
    assert memory_order(torch.empty_strided((BLOCKS, 1, TOKENS), (TOKENS, 7, 1))) == [2]
    one = numbered(1, HEADS, TOKENS)
    rows = block_rows(one.as_strided(one.shape, (1, TOKENS, 1)))
    assert rows is not None and rows.shape == (1, 4 * HEADS * TOKENS)


def test_only_what_follows_at_once_in_each_block_is_joined() -> None:
    first, second, third = (block_rows(layer) for layer in layers_inside())
    assert first is not None and second is not None and third is not None
    both = joined(first, second)
    assert both is not None and torch.equal(both[3], torch.cat([first[3], second[3]]))
    assert joined(first, third) is None and joined(second, first) is None
    assert joined(first, second.clone()) is None
    apart = block_rows(numbered(2, BLOCKS, WIDTH)[0]), block_rows(numbered(2, BLOCKS, WIDTH)[1])
    assert joined(*apart) is None


def planes(layers: list[Any]) -> KvPlanes:
    return KvPlanes.of({f"layers.{i}": layer for i, layer in enumerate(layers)}, BLOCKS, "m")


def test_layers_that_lie_together_are_one_copy_and_the_stored_bytes_are_those_of_layers_apart() -> None:
    together = planes(layers_inside())
    apart = planes([layer.clone(memory_format=torch.contiguous_format) for layer in layers_inside()])
    assert together.shape == apart.shape, "they exchange KV"
    payloads = [torch.zeros(one.block_bytes, dtype=torch.uint8) for one in (together, apart)]
    copies = [one.copy([3], payload) for one, payload in zip((together, apart), payloads, strict=True)]
    HostCopies().save(copies, None)
    assert [len(copy.pieces) for copy in copies] == [1, LAYERS]
    assert torch.equal(*payloads)
    part = together.layer_copy("layers.1", [3], payloads[0])
    assert part.payload.numel() == together.block_bytes // LAYERS and len(part.pieces) == 1


def test_another_order_in_memory_is_another_shape() -> None:
    assert planes([heads_inside()]).shape != planes([numbered(BLOCKS, HEADS, TOKENS, WIDTH)]).shape
