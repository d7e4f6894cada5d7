"""What the daemon takes when idle and with many blocks: memory beside the arena, and time until it is ready."""

from mooncask.client.local import LocalClient
from mooncask.tools.bench.daemon_process import DaemonProcess
from mooncask.tools.bench.plan import MIB, Places, Plan
from mooncask.tools.bench.process import memory_beside_shared
from mooncask.tools.bench.result import Fact, Findings
from mooncask.tools.bench.store_memory import FAMILY
from mooncask.tools.bench.targets import MEMORY_EMPTY, MEMORY_FULL, MEMORY_NVME, START_EMPTY, START_FULL, judge_fact

BLOCK_BYTES = 4096
PUT_BATCH = 1000
DEADLINE_SECONDS = 60.0


def measure_footprint(plan: Plan, places: Places, findings: Findings) -> None:
    """An empty daemon, then the same with `many_blocks` small ones in DRAM and on NVMe, then started again with them."""
    folder = places.folder / "footprint"
    folder.mkdir()
    data = places.data / "many"
    settings = {
        "dram_capacity": str(plan.many_blocks * BLOCK_BYTES * 5 // 4 + 64 * MIB),
        "nvme_path": str(data),
        "nvme_capacity": str(plan.many_blocks * 2 * BLOCK_BYTES * 3 // 2 + 8 * plan.segment_bytes),
        "nvme_segment": str(plan.segment_bytes),
        "nvme_direct": str(places.direct).lower(),
        "http_listen": "127.0.0.1:0",
    }
    with DaemonProcess(folder, settings) as daemon:
        _add(findings, START_EMPTY, daemon.ready_seconds, "s")
        _add(findings, MEMORY_EMPTY, memory_beside_shared(daemon.pid) / 1e6, "MB")
        client = daemon.connect()
        _put_many(client, plan.many_blocks)
        client.close()
        _add(findings, MEMORY_FULL, memory_beside_shared(daemon.pid) / 1e6, "MB")
    with DaemonProcess(folder, settings) as daemon:
        _add(findings, START_FULL, daemon.ready_seconds, "s")
        _add(findings, MEMORY_NVME, memory_beside_shared(daemon.pid) / 1e6, "MB")
        _check_present(daemon.connect(), plan.many_blocks)


def _put_many(client: LocalClient, count: int) -> None:
    ns = client.open_namespace("bench-many", family=FAMILY, mode="write_through")
    for start in range(0, count, PUT_BATCH):
        numbers = range(start, min(start + PUT_BATCH, count))
        payloads = [i.to_bytes(8, "little") * (BLOCK_BYTES // 8) for i in numbers]
        client.put(ns, [_key(i) for i in numbers], payloads, durable=True)


def _check_present(client: LocalClient, count: int) -> None:
    """That the daemon that was timed really has them all."""
    ns = client.open_namespace("bench-many", family=FAMILY)
    found = client.stat(ns, [_key(i) for i in range(count)])
    assert all(found), f"{sum(block is None for block in found)} of {count} durable blocks are not there"
    client.close()


def _key(i: int) -> bytes:
    return i.to_bytes(16, "big")


def _add(findings: Findings, name: str, value: float, unit: str) -> None:
    findings.facts.append(judge_fact(Fact(name, value, unit)))
