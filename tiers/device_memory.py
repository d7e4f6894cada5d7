"""One piece of memory on a torch device: the only module of this room that imports torch, and only when it is opened.

One allocation, because a CUDA IPC handle names an allocation: workers open it once and find every extent by its offset.
The device `cpu` is for tests: the same code over ordinary memory.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mooncask.errors import BadRequest, ConfigError
from mooncask.tiers.block import ALIGNMENT

_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


class DeviceMemory:
    """`capacity_bytes` on `device` (`cuda:N`, or `cpu`). Safe for use by several threads on bytes that do not overlap.

    On cuda, copies in and out go over two streams of its own, so that neither waits for the other nor for anybody's
    kernels; each call returns when its copy has ended. Raises ConfigError when torch, the device or the memory is not there.
    """

    def __init__(self, device: str, capacity_bytes: int, environment: Mapping[str, str] = os.environ) -> None:
        if capacity_bytes <= 0 or capacity_bytes % ALIGNMENT:
            raise ConfigError("hbm.capacity", str(capacity_bytes), f"must be a positive multiple of {ALIGNMENT} bytes")
        self._torch = _import_torch(capacity_bytes)
        self.device = device
        self.capacity_bytes = capacity_bytes
        self._is_cuda = _check_device(self._torch, device)
        if self._is_cuda:
            refuse_expandable_segments(environment)
        self._tensor: Any = self._allocate()
        self._inward = self._torch.cuda.Stream(device) if self._is_cuda else None
        self._outward = self._torch.cuda.Stream(device) if self._is_cuda else None

    @property
    def tensor(self) -> Any:
        """All of it: a uint8 tensor of shape (capacity_bytes,)."""
        assert self._tensor is not None, "this memory was closed"
        return self._tensor

    def write(self, offset: int, source: memoryview, length: int) -> None:
        """Copy `source` to `offset` and zero what follows it up to `length` bytes. Raises OSError when the device fails."""
        target = self.tensor[offset : offset + length]
        with self._copying(self._inward):
            target[: source.nbytes].copy_(self._host_tensor(source), non_blocking=True)
            target[source.nbytes :].zero_()

    def read(self, offset: int, into: memoryview) -> None:
        """Fill `into` from `offset` on. Raises OSError when the device fails."""
        source = self.tensor[offset : offset + into.nbytes]
        with self._copying(self._outward):
            self._host_tensor(into).copy_(source, non_blocking=True)

    def export_handle(self) -> bytes:
        """What a process on this host needs to map this memory: msgpack of an array of eight, made anew for each worker.

        [device index, IPC handle, allocation bytes, offset in it, reference counter's handle, offset in that, event handle,
        whether to wait for the event]: the arguments of torch's `UntypedStorage._new_shared_cuda`, in its order.
        Raises BadRequest on a device without IPC.
        """
        if not self._is_cuda:
            raise BadRequest(
                f"memory on {self.device} has no CUDA IPC handle; set hbm.device = cuda:0, or use the DRAM tier"
            )
        return msgspec.msgpack.encode(list(self.tensor.untyped_storage()._share_cuda_()))

    def close(self) -> None:
        """Give the memory back to the device. Idempotent."""
        if self._tensor is None:
            return
        self._tensor = None
        if self._is_cuda:
            self._torch.cuda.empty_cache()

    def _allocate(self) -> Any:
        try:
            return self._torch.zeros(self.capacity_bytes, dtype=self._torch.uint8, device=self.device)
        except RuntimeError as error:  # OutOfMemoryError is one
            why = f"{self.device} does not give that much memory: {_first_line(error)}"
            raise ConfigError("hbm.capacity", str(self.capacity_bytes), why) from error

    @contextmanager
    def _copying(self, stream: Any) -> Iterator[None]:
        try:
            with self._torch.cuda.stream(stream):  # nothing happens here when it is None
                yield
            if stream is not None:
                stream.synchronize()
        except RuntimeError as error:
            raise OSError(errno.EIO, f"{self.device}: {_first_line(error)}") from error

    def _host_tensor(self, buffer: memoryview) -> Any:
        array = np.frombuffer(buffer, np.uint8)
        if not array.flags.writeable:
            array = np.asarray(_Unlocked(array))
        return self._torch.from_numpy(array)


class _Unlocked:
    """Shows a read-only array as a writable one, since torch has no read-only tensors. Only ever the source of a copy."""

    def __init__(self, array: NDArray[np.uint8]) -> None:
        self._array = array

    @property
    def __array_interface__(self) -> dict[str, Any]:
        address, _ = self._array.__array_interface__["data"]
        return {**self._array.__array_interface__, "data": (address, False)}


def refuse_expandable_segments(environment: Mapping[str, str]) -> None:
    """Raise ConfigError when torch is told to use expandable segments: such memory has no CUDA IPC handle."""
    for setting in _ALLOCATOR_SETTINGS:
        value = environment.get(setting, "")
        if "expandable_segments:true" in value.replace(" ", "").lower():
            raise ConfigError(
                setting, value, "must not switch expandable_segments on: the HBM tier is shared by CUDA IPC"
            )


def _import_torch(capacity_bytes: int) -> Any:
    try:
        import torch
    except ImportError as error:
        why = 'needs torch: pip install "mooncask[engine]", or set it to 0'
        raise ConfigError("hbm.capacity", str(capacity_bytes), why) from error
    return torch


def _check_device(torch: Any, device: str) -> bool:
    """Whether it is a CUDA device. Raises ConfigError for any that is not `cpu` or a GPU of this machine."""
    if device == "cpu":
        return False
    kind, _, number = device.partition(":")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and number.isdecimal() and int(number) < count:
        return True
    raise ConfigError(
        "hbm.device", device, f"must be cuda:N with N below {count}, the GPUs that torch sees, or cpu for tests"
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
