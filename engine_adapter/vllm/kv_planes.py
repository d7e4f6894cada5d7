"""vLLM's paged KV cache as planes of bytes, and the copies between them and a block of the store. torch only.

vLLM keeps a tensor a layer whose dimension 0 (or 1, behind K and V) counts the blocks. A plane is such a tensor, or the K
or V half of it, as [blocks, bytes of one block]; a stored block is the bytes of all its planes one after another, layer
by layer. Nothing is transposed: what the bytes mean is the engine's, and the family says whose they are.
"""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256

import torch

from mooncask.errors import UnsupportedModel

LAYOUT = "vllm planes, layer by layer 1"
"""Part of the family."""


class KvPlanes:
    """The KV cache of one worker. Copies of different blocks may run in several threads."""

    def __init__(self, planes: Sequence[torch.Tensor], shape: str) -> None:
        self._planes = list(planes)
        self._bytes = [plane.shape[1] for plane in planes]
        self.block_bytes = sum(self._bytes)
        self.shape = shape
        """What the tensors look like, block count left out; part of the family."""

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor], blocks: int, model: str) -> "KvPlanes":
        """`tensors` by layer name, as vLLM registers them. Raises UnsupportedModel, naming the layer and what is odd."""
        if not tensors:
            raise UnsupportedModel(model, "it has no KV cache")
        names = sorted(tensors, key=_natural)
        planes = [plane for name in names for plane in _planes(name, tensors[name], blocks, model)]
        starts = {plane.data_ptr() for plane in planes}
        if len(starts) != len(planes):
            raise UnsupportedModel(
                model, "layers share one KV cache; only models whose layers each have one are stored"
            )
        shape = "; ".join(f"{name} {_shape(name, tensors[name], blocks, model)}" for name in names)
        return cls(planes, f"{len(names)} layers {sha256(shape.encode()).hexdigest()[:32]}")

    def load(self, block_id: int, payload: torch.Tensor) -> None:
        """Copies a stored block, flat bytes, into the engine's block. Raises ValueError when it is of another size."""
        self._check(payload)
        start = 0
        for plane, size in zip(self._planes, self._bytes, strict=True):
            plane[block_id].copy_(payload[start : start + size])
            start += size

    def save(self, block_id: int, payload: torch.Tensor) -> None:
        """Copies the engine's block out. Raises ValueError when the place is of another size."""
        self._check(payload)
        start = 0
        for plane, size in zip(self._planes, self._bytes, strict=True):
            payload[start : start + size].copy_(plane[block_id])
            start += size

    def _check(self, payload: torch.Tensor) -> None:
        if payload.numel() != self.block_bytes:
            raise ValueError(f"a block of {payload.numel()} bytes; this engine's have {self.block_bytes}")


def _planes(name: str, tensor: torch.Tensor, blocks: int, model: str) -> list[torch.Tensor]:
    if tensor.device.type != "cpu":
        why = f"the KV cache of {name} is on {tensor.device}; this connector copies to and from CPU memory only"
        raise UnsupportedModel(model, why)
    halves = [tensor] if _block_dimension(name, tensor, blocks, model) == 0 else [tensor[0], tensor[1]]
    for half in halves:
        if not half.is_contiguous():
            raise UnsupportedModel(model, f"the blocks of {name}'s KV cache do not each lie in one piece")
    return [half.view(torch.uint8).view(blocks, -1) for half in halves]


def _block_dimension(name: str, tensor: torch.Tensor, blocks: int, model: str) -> int:
    shape = list(tensor.shape)
    if len(shape) > 1 and shape[0] == blocks:
        return 0
    if len(shape) > 2 and shape[0] == 2 and shape[1] == blocks:
        return 1
    raise UnsupportedModel(
        model, f"the KV cache of {name} has shape {shape}, which does not begin with {blocks} blocks"
    )


def _shape(name: str, tensor: torch.Tensor, blocks: int, model: str) -> str:
    """All but how many blocks there are: that may differ between engines which exchange KV."""
    shape = list(tensor.shape)
    shape[_block_dimension(name, tensor, blocks, model)] = -1
    return f"{shape} {tensor.dtype}"


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Layer 10 comes after layer 9."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
