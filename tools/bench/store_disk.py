"""The NVMe tier through the local client: puts that are durable when answered, and gets with nothing in DRAM."""

from collections.abc import Mapping

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.tools.bench.disk_limits import READ, WRITE, PlainFile
from mooncask.tools.bench.memory_limits import Bytes, blocks_of
from mooncask.tools.bench.plan import BlockPlan, Places, Plan
from mooncask.tools.bench.result import LIMIT, STORE, Findings, beside, measured
from mooncask.tools.bench.samples import take_turns, timed
from mooncask.tools.bench.store_memory import FAMILY
from mooncask.tools.bench.targets import NVME_GET, NVME_PUT, judge_measure

DEADLINE_SECONDS = 60.0


def _keys(block: BlockPlan, batch: int, i: int) -> list[bytes]:
    return [f"disk-{block.block_bytes}-{i}-{j}".encode() for j in range(batch)]


def _open(client: LocalClient) -> NamespaceHandle:
    return client.open_namespace("bench-disk", family=FAMILY, mode="write_through")


def _plain_file(places: Places, plan: Plan, block: BlockPlan) -> PlainFile:
    path = places.data.parent / "plain.file"
    return PlainFile(path, block.block_bytes, plan.batch, block.disk_rounds, plan.io_threads, places.direct)


def measure_puts(
    client: LocalClient, plan: Plan, block: BlockPlan, source: Bytes, places: Places, findings: Findings
) -> None:
    """Durable puts beside a plain file; the blocks stay for `measure_gets`."""
    ns = _open(client)

    def put(i: int) -> Mapping[str, float]:
        keys, payloads = _keys(block, plan.batch, i), blocks_of(source, block.block_bytes, plan.batch, i)
        with timed() as watch:
            client.put(ns, keys, payloads, durable=True)
        return {NVME_PUT: watch.seconds}

    with _plain_file(places, plan, block) as file:
        found = take_turns([put, file.write], block.disk_rounds)
    limit = measured(LIMIT, WRITE, found[WRITE], block.block_bytes, plan.batch)
    ours = measured(STORE, NVME_PUT, found[NVME_PUT], block.block_bytes, plan.batch)
    findings.measures += [judge_measure(beside(ours, limit)), limit]


def measure_gets(client: LocalClient, plan: Plan, block: BlockPlan, places: Places, findings: Findings) -> None:
    """Gets of what `measure_puts` stored, through a daemon that was started afterwards: every block is on NVMe only."""
    ns = _open(client)

    def get(i: int) -> Mapping[str, float]:
        keys = _keys(block, plan.batch, i)
        with timed() as watch:
            blocks = client.acquire(ns, keys, deadline_seconds=DEADLINE_SECONDS)
            views = [item.memory for item in blocks if item is not None]
        assert len(views) == len(keys), "a block that was durable is not there"
        views.clear()
        blocks.close()
        return {NVME_GET: watch.seconds}

    with _plain_file(places, plan, block) as file:
        for i in range(block.disk_rounds):
            file.write(i)
        found = take_turns([get, file.read], block.disk_rounds)
    limit = measured(LIMIT, READ, found[READ], block.block_bytes, plan.batch)
    ours = measured(STORE, NVME_GET, found[NVME_GET], block.block_bytes, plan.batch)
    findings.measures += [judge_measure(beside(ours, limit)), limit]
