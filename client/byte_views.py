"""Anything that holds contiguous bytes, seen as a flat uint8 array without a copy."""

from typing import Any

import numpy as np

from mooncask.client.leases import Bytes
from mooncask.errors import BadRequest


def flat_bytes(buffer: Any, *, writable: bool = False) -> Bytes:
    """The bytes of a buffer object, a numpy array or a CPU torch tensor. Raises BadRequest for what is none of these, is not
    contiguous, or is to be written and cannot be."""
    array = _tensor_bytes(buffer) if hasattr(buffer, "data_ptr") else _buffer_bytes(buffer)
    if writable and not array.flags.writeable:
        raise BadRequest(f"a {type(buffer).__name__} that is read-only cannot be written into")
    return array


def _buffer_bytes(buffer: Any) -> Bytes:
    if isinstance(buffer, np.ndarray):
        if not buffer.flags.c_contiguous:
            raise BadRequest(f"an array of shape {buffer.shape} that is not contiguous has no bytes in a row; copy it")
        return buffer.reshape(-1).view(np.uint8)
    try:
        view = memoryview(buffer).cast("B")
    except TypeError as exc:
        raise BadRequest(f"a {type(buffer).__name__} has no contiguous bytes: {exc}") from exc
    return np.frombuffer(view, np.uint8)


def _tensor_bytes(tensor: Any) -> Bytes:
    import torch  # whoever has a tensor has torch

    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise BadRequest(f"a tensor must be contiguous and on the CPU; this one is {tensor.device}; copy it there")
    flat: Bytes = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return flat
