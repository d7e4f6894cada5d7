"""The vLLM part of the GPU check: the connector's copies between a paged KV cache and the store's memory, without vLLM.

Each round, while a long computation runs on the stream that computes: kernels behind it write blocks, which are saved at
once; then kernels overwrite other blocks, into which the saved bytes are loaded at once; then a kernel reads what was
loaded. Too early or too late a copy shows in the bytes. On the CPU a stand-in for streams does it all (late_device.py);
its figures say nothing.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from mmap import mmap
from typing import Any, Protocol

import numpy as np
import torch
from gpu_copies import pinned_rates, rate
from late_device import LateDevice, LateEvent

from mooncask.engine_adapter.vllm.device.accelerator import Accelerator
from mooncask.engine_adapter.vllm.device.cuda import Cuda, CudaEvent
from mooncask.engine_adapter.vllm.device.staged import StagedCopies
from mooncask.engine_adapter.vllm.kv_planes import KvPlanes
from mooncask.errors import DeviceFault

THREADS = 4
RUBBISH = 0xAB


@dataclass(frozen=True, slots=True)
class VllmSizes:
    layers: int
    heads: int
    tokens: int
    width: int
    """Of K and V together, float16."""
    blocks: int
    """Saved, and as many loaded, in a round."""
    pinned_bytes: int
    rounds: int
    busy: int
    """Side of the matrices that are multiplied meanwhile."""


@dataclass(frozen=True, slots=True)
class VllmFindings:
    """GB/s, 10^9 bytes, by the median round."""

    layout: str
    block_bytes: int
    copies_a_block: int
    rounds: int
    beside_computing: int
    """Saves and loads of these rounds for which it was true that what they had to wait for was still being computed when they
    were asked for."""
    wrong: int
    save: float
    load: float
    pinned_out: float
    pinned_in: float
    busy_seconds: float
    """A computation alone."""
    busy_beside_copies_seconds: float

    @property
    def save_share(self) -> float:
        return self.save / self.pinned_out

    @property
    def load_share(self) -> float:
        return self.load / self.pinned_in


class Rig(Protocol):
    """A device, and what computes on it."""

    device: str

    @property
    def accelerator(self) -> Accelerator: ...
    def launch(self, kernel: Callable[[], object]) -> None: ...
    def busy(self) -> None:
        """Launches a long computation."""
        ...

    def settle(self) -> None:
        """Waits for all of it."""
        ...

    def is_done(self, mark: Any) -> bool: ...


class CudaRig:
    def __init__(self, device: str, side: int) -> None:
        self.device, self.accelerator = device, Cuda(torch.device(device))
        self._factors = [torch.randn(side, side, device=device) for _ in range(2)]

    def launch(self, kernel: Callable[[], object]) -> None:
        kernel()

    def busy(self) -> None:
        for _ in range(20):
            self._factors[0] = torch.nn.functional.normalize(self._factors[0] @ self._factors[1])

    def settle(self) -> None:
        torch.cuda.synchronize(self.device)

    def is_done(self, mark: Any) -> bool:
        assert isinstance(mark, CudaEvent)
        return bool(mark.raw.query())


class LateRig:
    device = "cpu"

    def __init__(self) -> None:
        self.accelerator = self.late = LateDevice()

    def launch(self, kernel: Callable[[], object]) -> None:
        self.late.compute.launch(kernel)  # type: ignore[arg-type]  # what it returns is not looked at

    def busy(self) -> None:
        pass

    def settle(self) -> None:
        self.late.finish()
        assert self.late.faults_seen == [], self.late.faults_seen

    def is_done(self, mark: Any) -> bool:
        assert isinstance(mark, LateEvent)
        return mark.done


def check_vllm(device: str, sizes: VllmSizes) -> list[VllmFindings]:
    """One a layout of the KV cache. Raises AssertionError when a byte is not what it should be."""
    rig: Rig = LateRig() if device == "cpu" else CudaRig(device, sizes.busy)
    if device != "cpu":
        _check_that_faults_have_a_name(rig.accelerator)
    found = []
    for layout, tensors in _layouts(device, sizes).items():
        planes = KvPlanes.of({f"layers.{i}": tensor for i, tensor in enumerate(tensors)}, 2 * sizes.blocks, layout)
        copies = StagedCopies(rig.accelerator, planes.block_bytes, sizes.pinned_bytes)
        shared = mmap(-1, sizes.blocks * planes.block_bytes)  # as the store's memory: shared, and not pinned
        try:
            found.append(_Check(rig, planes, copies, _payloads(shared, planes), sizes).run(layout))
        finally:
            copies.close()
    return found


def _layouts(device: str, sizes: VllmSizes) -> dict[str, list[torch.Tensor]]:
    """As vLLM's backends lay KV out, by vLLM's names: layers apart; a token's heads together; a block's layers together."""
    blocks, kind = 2 * sizes.blocks, torch.float16
    whole = torch.zeros(blocks, sizes.layers, sizes.heads, sizes.tokens, sizes.width, dtype=kind, device=device)
    shape, turned = (blocks, sizes.heads, sizes.tokens, sizes.width), (blocks, sizes.tokens, sizes.heads, sizes.width)
    return {
        "LBHNC": [torch.zeros(shape, dtype=kind, device=device) for _ in range(sizes.layers)],
        "LBNHC": [torch.zeros(turned, dtype=kind, device=device).transpose(1, 2) for _ in range(sizes.layers)],
        "BLHNC": list(whole.unbind(1)),
    }


def _payloads(shared: mmap, planes: KvPlanes) -> list[torch.Tensor]:
    return list(torch.frombuffer(shared, dtype=torch.uint8).split(planes.block_bytes))


def _check_that_faults_have_a_name(accelerator: Accelerator) -> None:
    try:
        accelerator.pinned(1 << 50)
    except DeviceFault as fault:
        assert accelerator.name in str(fault)
        return
    raise AssertionError("a pebibyte of pinned memory was given")


class _Check:
    def __init__(
        self, rig: Rig, planes: KvPlanes, copies: StagedCopies, payloads: list[torch.Tensor], sizes: VllmSizes
    ) -> None:
        self._rig, self._planes, self._copies, self._payloads, self._sizes = rig, planes, copies, payloads, sizes
        self._beside = 0

    def run(self, layout: str) -> VllmFindings:
        total = len(self._payloads) * self._planes.block_bytes
        with ThreadPoolExecutor(THREADS) as pool:
            wrong = sum(self._round(pool, seed) for seed in range(self._sizes.rounds))
            beside = self._beside
            assert wrong == 0, f"{layout}: {wrong} blocks on {self._rig.device} are not what they should be"
            assert beside > 0, "nothing was copied beside a computation, so this was no check"
            places = range(len(self._payloads))
            save = rate(lambda: self._save(pool, places), total, self._sizes.rounds)
            load = rate(lambda: self._load(pool, places), total, self._sizes.rounds)
            busy_alone, busy_beside = self._seconds_busy(), self._seconds_busy(pool)
        pinned_in, pinned_out = pinned_rates(self._rig.device, total, self._sizes.rounds)
        return VllmFindings(
            layout=layout,
            block_bytes=self._planes.block_bytes,
            copies_a_block=len(self._planes.copy([0], self._payloads[0]).pieces),
            rounds=self._sizes.rounds,
            beside_computing=beside,
            wrong=wrong,
            save=save,
            load=load,
            pinned_out=pinned_out,
            pinned_in=pinned_in,
            busy_seconds=busy_alone,
            busy_beside_copies_seconds=busy_beside,
        )

    def _round(self, pool: ThreadPoolExecutor, seed: int) -> int:
        """How many blocks came out wrong."""
        count, size = len(self._payloads), self._planes.block_bytes
        random_bytes = np.frombuffer(np.random.default_rng(seed).bytes(count * size), np.uint8)
        wanted = torch.from_numpy(random_bytes.copy()).view(count, size)
        there = wanted.to(self._rig.device)
        places = torch.randperm(2 * count, generator=torch.Generator().manual_seed(seed))
        sources, targets = places[:count], places[count:]
        self._rig.settle()
        self._rig.busy()
        self._write(sources, there)
        self._save(pool, sources.tolist())
        self._rig.busy()
        rubbish = torch.full_like(there, RUBBISH)
        for half in (sources, targets):
            self._write(half, rubbish)
        wrong = sum(not torch.equal(*pair) for pair in zip(self._payloads, wanted, strict=True))
        self._rig.busy()
        self._write(targets, rubbish)
        self._load(pool, targets.tolist())
        seen = self._read(targets)
        self._rig.settle()
        return wrong + sum(not torch.equal(*pair) for pair in zip(seen.cpu(), wanted, strict=True))

    def _write(self, places: torch.Tensor, values: torch.Tensor) -> None:
        """Launches kernels that write blocks."""
        places = places.to(self._rig.device)
        for plane in self._planes.layers.values():
            for rows in plane:
                part = values[:, rows.start : rows.start + rows.size]
                self._rig.launch(partial(rows.data.index_copy_, 0, places, part))

    def _read(self, places: torch.Tensor) -> torch.Tensor:
        """Launches kernels that read blocks into what is returned."""
        places = places.to(self._rig.device)
        seen = torch.zeros(len(places), self._planes.block_bytes, dtype=torch.uint8, device=self._rig.device)
        for plane in self._planes.layers.values():
            for rows in plane:
                part = seen[:, rows.start : rows.start + rows.size]
                self._rig.launch(partial(_copy_rows, part, rows.data, places))
        return seen

    def _save(self, pool: ThreadPoolExecutor, places: Sequence[int]) -> None:
        self._copied(pool, self._copies.save, places, threads=1)

    def _load(self, pool: ThreadPoolExecutor, places: Sequence[int]) -> None:
        self._copied(pool, self._copies.load, places, THREADS)

    def _copied(self, pool: ThreadPoolExecutor, copy: Any, places: Sequence[int], threads: int) -> None:
        """By as many threads as in the connector."""
        copies = [self._planes.copy([place], payload) for place, payload in zip(places, self._payloads, strict=True)]
        mark = self._copies.mark()
        self._beside += not self._rig.is_done(mark)
        for over in [pool.submit(copy, copies[i::threads], mark) for i in range(threads)]:
            over.result()

    def _seconds_busy(self, pool: ThreadPoolExecutor | None = None) -> float:
        """Of a long computation; with `pool`, blocks are loaded meanwhile."""
        self._rig.settle()
        mark = self._copies.mark()  # before it: these copies need not wait for it
        copies = [self._planes.copy([i], payload) for i, payload in enumerate(self._payloads)]
        started = time.perf_counter()
        self._rig.busy()
        loading = pool.submit(self._copies.load, copies, mark) if pool is not None else None
        if self._rig.device != "cpu":
            torch.cuda.current_stream(self._rig.device).synchronize()
        seconds = time.perf_counter() - started
        if loading is not None:
            loading.result()
        return seconds


def _copy_rows(target: torch.Tensor, source: torch.Tensor, places: torch.Tensor) -> None:
    target.copy_(source.index_select(0, places))
