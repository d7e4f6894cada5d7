"""`accelerator.py` by torch's CUDA calls, and nothing else: the one module of this folder that needs a GPU to run.

torch's faults become DeviceFault here. CUDA tells of a kernel's fault at any later call, so the call named is not always the
one at fault.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from mooncask.engine_adapter.vllm.device.accelerator import Event, Pair
from mooncask.errors import DeviceFault


class CudaEvent:
    """A recorded event."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        """Recorded on `stream` now. `blocking`: a thread that waits sleeps; else it would take a core from the engine."""
        self._device = device
        with _translated(device, "event record"):
            self.raw = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch's own
            self.raw.record(stream)

    def synchronize(self) -> None:
        with _translated(self._device, "wait for an event"):
            self.raw.synchronize()


class CudaStream:
    """A stream of its own on one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with _translated(device, "new stream"):
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own

    def wait(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        with _translated(self._device, "order of two streams"):
            self._stream.wait_event(event.raw)

    def copy(self, pairs: Sequence[Pair]) -> Event:
        # torch copies on the current stream, which each thread has its own of; flat on both sides, so that it copies
        # at once and without memory of its own.
        with _translated(self._device, "copy"), torch.cuda.stream(self._stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
            return CudaEvent(self._device, self._stream)

    def synchronize(self) -> None:
        with _translated(self._device, "wait for a stream"):
            self._stream.synchronize()


class Cuda:
    """One GPU of this process."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.name = str(device)

    def pinned(self, size: int) -> torch.Tensor:
        with _translated(self._device, f"{size} bytes of pinned memory"):
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def stream(self) -> CudaStream:
        return CudaStream(self._device)

    def mark(self) -> Event:
        with _translated(self._device, "current stream"):
            current = torch.cuda.current_stream(self._device)
        return CudaEvent(self._device, current)


@contextmanager
def _translated(device: torch.device, what: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch.AcceleratorError and OutOfMemoryError are such
        raise DeviceFault(str(device), what, str(error).partition("\n")[0]) from error
