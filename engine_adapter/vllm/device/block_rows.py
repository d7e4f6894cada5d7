"""A tensor of blocks as rows of bytes, whatever order its other dimensions have in memory. Moves nothing."""

import torch


def memory_order(tensor: torch.Tensor) -> list[int]:
    """The dimensions behind the first, as they lie in memory, outermost first; those of size 1 lie anywhere and are left out."""
    wide = [dimension for dimension in range(1, tensor.dim()) if tensor.shape[dimension] > 1]
    strides = tensor.stride()
    return sorted(wide, key=lambda dimension: (-strides[dimension], dimension))


def block_rows(tensor: torch.Tensor) -> torch.Tensor | None:
    """[blocks, bytes of one block] of a tensor whose first dimension counts the blocks. None unless each block is in one
    piece; between blocks there may be something else."""
    order = memory_order(tensor)
    elements = 1
    for dimension in reversed(order):
        if tensor.stride(dimension) != elements:
            return None
        elements *= tensor.shape[dimension]
    blocks = tensor.shape[0]
    between = tensor.stride(0) if blocks > 1 else elements
    if between < elements:
        return None
    rows = tensor.as_strided((blocks, elements), (between, 1), tensor.storage_offset())
    return rows.view(torch.uint8)


def joined(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor | None:
    """Rows of both, where in each block `other` begins at the byte at which `one` ends; None where it does not."""
    size = one.shape[1] + other.shape[1]
    neighbours = (
        one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
        and one.data_ptr() + one.shape[1] == other.data_ptr()
        and one.stride(0) == other.stride(0) >= size
        and one.shape[0] == other.shape[0] > 1
    )
    return one.as_strided((one.shape[0], size), (one.stride(0), 1), one.storage_offset()) if neighbours else None
