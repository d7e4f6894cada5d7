"""vLLM's paged KV cache as planes of bytes, and where a block of the store goes in them. torch only; `device/` copies.

vLLM keeps a tensor a layer whose dimension 0 (or 1, behind K and V) counts the blocks. A plane is such a tensor, or the K
or V half of it, as [blocks, bytes of one block]; a stored block is the bytes of all its planes one after another, layer
by layer. Nothing is transposed: what the bytes mean is the engine's, and the family says whose they are.

Layers may be in several KV cache groups, each with a block table of its own: a block of the store is then in several
blocks of the engine, one a group. Tensors of different groups lie over one another: an engine's block is one group's.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import torch

from mooncask.engine_adapter.vllm.device import DEVICES
from mooncask.engine_adapter.vllm.device.block_rows import block_rows, joined, memory_order
from mooncask.engine_adapter.vllm.device.copies import BlockCopy, Piece
from mooncask.errors import UnsupportedModel

LAYOUT = "vllm planes, layer by layer 1"
"""Part of the family."""

BlockIds = Sequence[int | None]
"""Where a block of the store is in the engine, one id a group; None where the group keeps nothing of it."""


@dataclass(frozen=True, slots=True)
class Plane:
    """One layer's K, V or both: [blocks, `size`] bytes, which are at `start` in a stored block."""

    data: torch.Tensor
    layer: str
    group: int
    start: int

    @property
    def size(self) -> int:
        return int(self.data.shape[1])


class KvPlanes:
    """The KV cache of one worker. Any thread may use it."""

    def __init__(self, planes: Sequence[Plane], shape: str) -> None:
        self._rows = _joined(planes)
        self.block_bytes = sum(plane.size for plane in planes)
        self.device = planes[0].data.device
        self.shape = shape
        """What the tensors look like, block count left out; part of the family."""
        self.layers: dict[str, list[Plane]] = {}
        """In the order in which they lie in a stored block, which is that of the model."""
        for plane in planes:
            self.layers.setdefault(plane.layer, []).append(plane)

    @classmethod
    def of(
        cls, tensors: Mapping[str, torch.Tensor], blocks: int, model: str, groups: Sequence[Sequence[str]] = ()
    ) -> "KvPlanes":
        """`tensors` by layer name, as vLLM registers them; `groups`: the layers of each KV cache group, empty for one that
        has all. Raises UnsupportedModel, naming the layer and what is odd."""
        if not tensors:
            raise UnsupportedModel(model, "it has no KV cache")
        names = sorted(tensors, key=_natural)
        group_of = {name: number for number, group in enumerate(groups or [names]) for name in group}
        planes: list[Plane] = []
        start = 0
        for name in names:
            if name not in group_of:
                raise UnsupportedModel(model, f"{name} is in none of its KV cache groups")
            for data in _planes(name, tensors[name], blocks, model):
                planes.append(Plane(data, name, group_of[name], start))
                start += planes[-1].size
        devices = sorted({str(plane.data.device) for plane in planes})
        if len(devices) > 1:
            raise UnsupportedModel(model, f"its KV cache lies on {' and '.join(devices)}; it must be on one device")
        if len({(plane.group, plane.data.data_ptr()) for plane in planes}) != len(planes):
            raise UnsupportedModel(
                model, "layers share one KV cache; only models whose layers each have one are stored"
            )
        shape = "; ".join(f"{name} {_shape(name, tensors[name], blocks, model)}" for name in names)
        return cls(planes, f"{len(names)} layers {sha256(shape.encode()).hexdigest()[:32]}")

    def copy(self, block_ids: BlockIds, payload: torch.Tensor) -> BlockCopy:
        """Between a stored block, flat bytes, and the engine's; groups without a place for it are left out, which is good
        for a load only. Raises ValueError when it is of another size."""
        self._check(payload)
        return BlockCopy(_pieces(self._rows, block_ids), payload)

    def layer_copy(self, layer: str, block_ids: BlockIds, payload: torch.Tensor) -> BlockCopy:
        """The part of `copy` that is one layer's."""
        self._check(payload)
        planes = self.layers[layer]
        first, last = planes[0], planes[-1]
        pieces = [piece._replace(start=piece.start - first.start) for piece in _pieces(planes, block_ids)]
        return BlockCopy(pieces, payload[first.start : last.start + last.size])

    def _check(self, payload: torch.Tensor) -> None:
        if payload.numel() != self.block_bytes:
            raise ValueError(f"a block of {payload.numel()} bytes; this engine's have {self.block_bytes}")


def _pieces(planes: Sequence[Plane], block_ids: BlockIds) -> list[Piece]:
    places = [(plane, block_ids[plane.group]) for plane in planes]
    return [Piece(plane.data[place], plane.start) for plane, place in places if place is not None]


def _joined(planes: Sequence[Plane]) -> list[Plane]:
    """The same bytes with fewer copies, where layers of a group lie one behind the other in a block."""
    found: list[Plane] = []
    for plane in planes:
        last = found[-1] if found else None
        together = joined(last.data, plane.data) if last is not None and last.group == plane.group else None
        if last is not None and together is not None:
            found[-1] = replace(last, data=together)
        else:
            found.append(plane)
    return found


def _planes(name: str, tensor: torch.Tensor, blocks: int, model: str) -> list[torch.Tensor]:
    if tensor.device.type not in DEVICES:
        why = f"the KV cache of {name} is on {tensor.device}; only CPU memory and CUDA GPUs are copied to and from"
        raise UnsupportedModel(model, why)
    halves = [tensor] if _block_dimension(name, tensor, blocks, model) == 0 else [tensor[0], tensor[1]]
    rows = [found for half in halves if (found := block_rows(half)) is not None]
    if len(rows) < len(halves):
        raise UnsupportedModel(model, f"the blocks of {name}'s KV cache do not each lie in one piece")
    return rows


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
    """All but how many blocks there are and what lies between them: that may differ between engines which exchange KV."""
    shape, dimension = list(tensor.shape), _block_dimension(name, tensor, blocks, model)
    shape[dimension] = -1
    order = memory_order(tensor if dimension == 0 else tensor[0])
    return f"{shape} {tensor.dtype}" + (f" in order {order}" if order != sorted(order) else "")


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Layer 10 comes after layer 9."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
