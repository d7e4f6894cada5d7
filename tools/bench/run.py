"""One run of `mooncask bench store`: which measures, in which order, on which daemon."""

import shutil
from collections.abc import Callable
from pathlib import Path

from mooncask.client.local import LocalClient
from mooncask.tools.bench.daemon_process import DaemonProcess
from mooncask.tools.bench.footprint import measure_footprint
from mooncask.tools.bench.memory_limits import private_memory, shared_memory
from mooncask.tools.bench.mooncake_peer import start_mooncake
from mooncask.tools.bench.peers import measure_peers
from mooncask.tools.bench.plan import MIB, Places, Plan
from mooncask.tools.bench.redis_peer import start_redis
from mooncask.tools.bench.result import Fact, Findings
from mooncask.tools.bench.store_disk import measure_gets, measure_puts
from mooncask.tools.bench.store_http import measure_http
from mooncask.tools.bench.store_memory import Memory, measure_blocks, measure_calls, wait_until_populated
from mooncask.tools.bench.streaming import measure_streaming

Progress = Callable[[str], None]


def run(plan: Plan, places: Places, with_peers: bool, progress: Progress) -> Findings:
    """Everything the plan asks for. What a stage left behind is removed before the next one, to keep memory bounded."""
    findings = Findings()
    progress("memory of the daemon, time to start")
    measure_footprint(plan, places, findings)
    shutil.rmtree(places.data / "many")
    _measure_store(plan, places, findings, progress)
    if with_peers:
        measure_peers({"mooncake store": start_mooncake, "redis": start_redis}, plan, places.folder, findings, progress)
    return findings if plan.judged else findings.unjudged()


def _measure_store(plan: Plan, places: Places, findings: Findings, progress: Progress) -> None:
    folder = places.folder / "store"
    folder.mkdir()
    settings = _settings(plan, places)
    largest = max(block.block_bytes for block in plan.blocks) * plan.batch
    memory = Memory(private_memory(largest, seed=1), private_memory(largest, seed=2), shared_memory(largest))
    with DaemonProcess(folder, settings) as daemon:
        client = daemon.connect()
        progress("waiting for the arena")
        findings.facts.append(Fact("arena populated after ready", wait_until_populated(client), "s"))
        client.close()
        client = daemon.connect()  # maps what is populated by now
        progress("calls without payload")
        measure_calls(client, plan, findings)
        _measure_sizes(client, daemon.http_port, plan, places, memory, findings, progress)
        client.close()
    with DaemonProcess(folder, settings) as daemon:
        client = daemon.connect()
        wait_until_populated(client)
        for block in plan.blocks:
            progress(f"blocks of {_size(block.block_bytes)}: NVMe get")
            measure_gets(client, plan, block, places, findings)
        client.close()


def _measure_sizes(
    client: LocalClient, port: int, plan: Plan, places: Places, memory: Memory, findings: Findings, progress: Progress
) -> None:
    for block in plan.blocks:
        progress(f"blocks of {_size(block.block_bytes)}: memory")
        measure_blocks(client, plan, block, memory, findings)
        progress(f"blocks of {_size(block.block_bytes)}: HTTP")
        measure_http(client, port, plan, block, memory.source, memory.private, findings)
        progress(f"blocks of {_size(block.block_bytes)}: NVMe put")
        measure_puts(client, plan, block, memory.source, places, findings)
    progress("local gets while HTTP streams")
    middle = plan.blocks[len(plan.blocks) // 2]
    measure_streaming(client, port, plan, middle, memory.source, findings)


def _settings(plan: Plan, places: Places) -> dict[str, str]:
    return {
        "dram_capacity": str(plan.dram_bytes),
        "nvme_path": str(places.data / "store"),
        "nvme_capacity": str(plan.nvme_bytes),
        "nvme_segment": str(plan.segment_bytes),
        "nvme_direct": str(places.direct).lower(),
        "nvme_io_threads": str(plan.io_threads),
        "http_listen": "127.0.0.1:0",
    }


def _size(block_bytes: int) -> str:
    return f"{block_bytes // MIB} MiB" if block_bytes >= MIB else f"{block_bytes >> 10} KiB"


def free_bytes(folder: Path) -> int:
    """Bytes that can still be written under `folder`."""
    return shutil.disk_usage(folder).free
