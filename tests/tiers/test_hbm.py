"""What HBM promises beyond the contract of all tiers. These run on the CPU; tests that need a GPU say so when they skip."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tier_worlds import payload_of, record_of

from mooncask.errors import BadRequest, ConfigError, CorruptBlock, TierDegraded
from mooncask.tiers.device_memory import DeviceMemory, refuse_expandable_segments
from mooncask.tiers.hbm import HbmTier

MIB = 1 << 20

torch = pytest.importorskip("torch", reason="the HBM tier needs torch, even for its tests on the CPU")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


class BrokenMemory(DeviceMemory):
    """A device that has fallen off the bus."""

    def write(self, offset: int, source: memoryview, length: int) -> None:
        raise OSError(errno.EIO, "cuda:0: unspecified launch failure")

    def read(self, offset: int, into: memoryview) -> None:
        raise OSError(errno.EIO, "cuda:0: unspecified launch failure")


async def test_it_says_which_device_it_is_on(pool: ThreadPoolExecutor) -> None:
    tier = HbmTier.open("cpu", MIB, pool)
    assert tier.device == "cpu"
    await tier.close()
    await tier.close()


def test_without_torch_the_error_names_the_setting_and_the_extra(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r"hbm\.capacity = 1048576.*mooncask\[engine\]"):
        HbmTier.open("cpu", MIB, pool)


def test_the_module_is_imported_without_torch() -> None:
    program = "import sys; import mooncask.tiers.hbm; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("device", ["cuda:64", "cuda", "cuda:x", "mps", ""])
def test_a_device_that_is_not_there_is_refused_by_name(pool: ThreadPoolExecutor, device: str) -> None:
    with pytest.raises(ConfigError, match=r"hbm\.device = .*must be cuda:N"):
        HbmTier.open(device, MIB, pool)


@pytest.mark.parametrize("capacity", [0, -4096, 4095])
def test_a_capacity_that_is_not_whole_pages_is_refused_by_name(pool: ThreadPoolExecutor, capacity: int) -> None:
    with pytest.raises(ConfigError, match=r"hbm\.capacity"):
        HbmTier.open("cpu", capacity, pool)


def test_more_memory_than_the_device_has_is_refused_by_name(pool: ThreadPoolExecutor) -> None:
    with pytest.raises(ConfigError, match=r"hbm\.capacity .*cpu does not give"):
        HbmTier.open("cpu", 1 << 50, pool)


@pytest.mark.parametrize("value", ["expandable_segments:True", "max_split_size_mb:64, expandable_segments : true"])
def test_expandable_segments_are_refused_since_they_can_not_be_shared(value: str) -> None:
    with pytest.raises(ConfigError, match="PYTORCH_CUDA_ALLOC_CONF"):
        refuse_expandable_segments({"PYTORCH_CUDA_ALLOC_CONF": value})


def test_other_allocator_settings_are_let_through() -> None:
    refuse_expandable_segments({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"})


async def test_memory_of_the_cpu_has_no_handle(pool: ThreadPoolExecutor) -> None:
    tier = HbmTier.open("cpu", MIB, pool)
    with pytest.raises(BadRequest, match=r"cpu.*hbm\.device"):
        tier.export_handle()
    await tier.close()


async def test_the_pad_behind_a_block_holds_nothing_of_what_lay_there(pool: ThreadPoolExecutor) -> None:
    tier = HbmTier.open("cpu", MIB, pool)
    tier.memory.tensor.fill_(0xEE)
    payload = payload_of(1, 5000)
    extent = tier.reserve(5000)
    assert extent is not None
    await tier.commit(extent, record_of(b"key", payload), memoryview(payload))
    assert not tier.memory.tensor[extent.offset + 5000 : extent.offset + extent.length].any()
    assert tier.memory.tensor[extent.offset + extent.length] == 0xEE
    await tier.close()


async def test_a_failing_device_degrades_writes_and_makes_reads_corrupt(pool: ThreadPoolExecutor) -> None:
    payload = payload_of(1, 5000)
    memory = DeviceMemory("cpu", MIB)
    tier = HbmTier(memory, pool)
    record, extent = record_of(b"key", payload), tier.reserve(5000)
    assert extent is not None
    await tier.commit(extent, record, memoryview(payload))
    tier.memory = BrokenMemory("cpu", MIB)
    with pytest.raises(CorruptBlock, match="launch failure"):
        await tier.read(extent, record, memoryview(bytearray(5000)))
    second = tier.reserve(5000)
    assert second is not None
    with pytest.raises(TierDegraded, match=r"hbm tier takes no writes.*launch failure"):
        await tier.commit(second, record_of(b"second", payload), memoryview(payload))
    assert list(tier.keys()) == [(1, b"key")]
    await tier.close()
    memory.close()


READ_THROUGH_HANDLE = """
import sys, msgspec, torch
handle = msgspec.msgpack.decode(sys.stdin.buffer.read())
storage = torch.UntypedStorage._new_shared_cuda(*handle)
memory = torch.empty(0, dtype=torch.uint8, device=f"cuda:{handle[0]}").set_(storage)
sys.stdout.buffer.write(memory[int(sys.argv[1]) : int(sys.argv[2])].cpu().numpy().tobytes())
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: CUDA IPC handles exist only there")
async def test_another_process_reads_a_block_through_the_handle(pool: ThreadPoolExecutor) -> None:
    tier = HbmTier.open("cuda:0", 4 * MIB, pool)
    payload = payload_of(1, MIB)
    extent = tier.reserve(MIB)
    assert extent is not None
    await tier.commit(extent, record_of(b"key", payload), memoryview(payload))
    reader = [sys.executable, "-c", READ_THROUGH_HANDLE, str(extent.offset), str(extent.offset + MIB)]
    read = subprocess.run(reader, input=tier.export_handle(), stdout=subprocess.PIPE, check=True, env=dict(os.environ))  # noqa: ASYNC221 - nothing else runs on this loop
    assert read.stdout == payload
    await tier.close()
