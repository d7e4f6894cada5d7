"""Whether local reads stay fast while somebody streams over HTTP: the daemon has one event loop for both.

Run as `python -m mooncask.tools.bench.streaming PORT PATH BYTES`, this module is the one who streams, in a process of its
own so that it does not share the measuring client's interpreter.
"""

import http.client
import subprocess
import sys

from mooncask.client.local import LocalClient
from mooncask.client.wire import NamespaceKind
from mooncask.tools.bench.memory_limits import Bytes
from mooncask.tools.bench.plan import BlockPlan, Plan
from mooncask.tools.bench.result import Fact, Findings
from mooncask.tools.bench.samples import percentile, timed
from mooncask.tools.bench.store_memory import FAMILY
from mooncask.tools.bench.targets import WHILE_STREAMING, judge_fact

NAMESPACE, KEY = "bench-stream", "streamed"
CHUNK_BYTES = 1 << 20


def measure_streaming(
    client: LocalClient, port: int, plan: Plan, block: BlockPlan, source: Bytes, findings: Findings
) -> None:
    """The p99 of zero-copy gets of one batch, over all gets made while `plan.stream_bytes` are sent."""
    streamed = client.open_namespace(NAMESPACE, kind=NamespaceKind.OBJECT, mode="memory")
    client.put(streamed, [KEY.encode()], [source[: min(source.size, 16 << 20)]])
    ns = client.open_namespace("bench-memory", family=FAMILY, mode="memory")
    keys = [f"during-{j}".encode() for j in range(plan.batch)]
    client.put(ns, keys, [source[: block.block_bytes]] * plan.batch)
    command = [sys.executable, "-m", __name__, str(port), f"/{NAMESPACE}/{KEY}", str(plan.stream_bytes)]
    seconds: list[float] = []
    with subprocess.Popen(command) as stream:
        while stream.poll() is None:
            with timed() as watch:
                blocks = client.acquire(ns, keys)
                views = [item.memory for item in blocks if item is not None]
            seconds.append(watch.seconds)
            assert len(views) == plan.batch
            views.clear()
            blocks.close()
    assert stream.returncode == 0, "the stream failed"
    findings.facts.append(judge_fact(Fact(WHILE_STREAMING, percentile(seconds, 0.99) * 1e3, "ms")))
    findings.facts.append(Fact("gets made meanwhile", len(seconds), "batches"))
    client.evict(ns, keys)
    client.evict(streamed, [KEY.encode()])


def stream(port: int, path: str, size_bytes: int) -> None:
    """GETs `path` again and again until `size_bytes` have come."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    chunk = memoryview(bytearray(CHUNK_BYTES))
    got = 0
    while got < size_bytes:
        connection.request("GET", path)
        response = connection.getresponse()
        assert response.status == 200, response.status
        while count := response.readinto(chunk):
            got += count
    connection.close()


def main() -> None:
    stream(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))


if __name__ == "__main__":
    main()
