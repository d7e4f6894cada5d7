"""Copies between the engine's KV cache and the store's memory, by where the cache lies: `host.py` for CPU memory,
`staged.py` over `cuda.py` for a GPU.

Not here: which blocks, when, and what becomes of a failed copy (`loading.py`, `saving.py`, `worker.py`). From the daemon's
HBM tier nothing is copied: docs/ENGINES.md says what is missing for that.
"""

import logging

import torch

from mooncask.engine_adapter.vllm.device.copies import BlockCopies
from mooncask.engine_adapter.vllm.device.cuda import Cuda
from mooncask.engine_adapter.vllm.device.host import HostCopies
from mooncask.engine_adapter.vllm.device.staged import StagedCopies

log = logging.getLogger(__name__)

DEVICES = ("cpu", "cuda")
"""Kinds of memory that KV may lie in."""


def copies_for(device: torch.device, block_bytes: int, pinned_bytes: int) -> BlockCopies:
    """`device` is of a kind in DEVICES; `block_bytes`: the largest block. On a GPU this allocates `pinned_bytes` of host
    memory. Raises ConfigError when they don't hold a block each way, DeviceFault when CUDA refuses."""
    if device.type == "cpu":
        return HostCopies()
    log.warning(
        "the KV cache is on %s: the copies through pinned memory and CUDA streams have been checked on CPU only so far,"
        ' never on a GPU; "make gpu-check" in Mooncask\'s source checks them on this machine',
        device,
    )
    return StagedCopies(Cuda(device), block_bytes, pinned_bytes)
