"""The HTTP door over one kept connection, block by block; beside it the same bytes over a bare loopback connection."""

import http.client
from collections.abc import Mapping

from mooncask.client.local import LocalClient
from mooncask.client.wire import NamespaceKind
from mooncask.tools.bench.counterpart import Counterpart
from mooncask.tools.bench.memory_limits import Bytes, blocks_of
from mooncask.tools.bench.plan import BlockPlan, Plan
from mooncask.tools.bench.result import LIMIT, STORE, Findings, beside, measured
from mooncask.tools.bench.samples import take_turns, timed

NAMESPACE = "bench-http"
PUT, GET = "HTTP put", "HTTP get"
SEND, RECEIVE = "bare TCP send", "bare TCP receive"
TIMEOUT_SECONDS = 60.0


class HttpRounds:
    """Puts and gets a batch of blocks one after the other. Every round writes the same keys with the same bytes."""

    def __init__(self, port: int, block_bytes: int, batch: int, source: Bytes, target: Bytes) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
        self._sources = blocks_of(source, block_bytes, batch, 0)
        self._targets = blocks_of(target, block_bytes, batch, 0)
        self._paths = [f"/{NAMESPACE}/http-{block_bytes}-{j}" for j in range(batch)]

    def put(self, i: int) -> Mapping[str, float]:
        with timed() as watch:
            for path, source in zip(self._paths, self._sources, strict=True):
                self._connection.request("PUT", path, body=source.data)
                self._finish()
        return {PUT: watch.seconds}

    def get(self, i: int) -> Mapping[str, float]:
        with timed() as watch:
            for path, target in zip(self._paths, self._targets, strict=True):
                self._connection.request("GET", path)
                self._finish(target.data)
        return {GET: watch.seconds}

    def close(self) -> None:
        self._connection.close()

    def _finish(self, target: memoryview | None = None) -> None:
        response = self._connection.getresponse()
        left = target
        while left is not None and left.nbytes and (count := response.readinto(left)):
            left = left[count:]
        rest = response.read()
        assert response.status in (200, 201, 204), (response.status, rest[:200])
        assert left is None or left.nbytes == 0, "a body shorter than the block"


def measure_http(
    client: LocalClient, port: int, plan: Plan, block: BlockPlan, source: Bytes, target: Bytes, findings: Findings
) -> None:
    """Gets and puts of a namespace in memory, so that the disk plays no part."""
    client.open_namespace(NAMESPACE, kind=NamespaceKind.OBJECT, mode="memory")
    size, batch = block.block_bytes, plan.batch
    rounds = HttpRounds(port, size, batch, source, target)
    sources, targets = blocks_of(source, size, batch, 0), blocks_of(target, size, batch, 0)
    with Counterpart.over_tcp() as counterpart:

        def send(i: int) -> Mapping[str, float]:
            with timed() as watch:
                for part in sources:
                    counterpart.write(part.data)
            return {SEND: watch.seconds}

        def receive(i: int) -> Mapping[str, float]:
            with timed() as watch:
                for part in targets:
                    counterpart.read_into(part.data)
            return {RECEIVE: watch.seconds}

        found = take_turns([rounds.put, send, rounds.get, receive], block.http_rounds)
    rounds.close()
    measures = {
        name: measured(LIMIT if name in (SEND, RECEIVE) else STORE, name, s, size, batch) for name, s in found.items()
    }
    findings.measures += [beside(measures[PUT], measures[SEND]), beside(measures[GET], measures[RECEIVE])]
    findings.measures += [measures[SEND], measures[RECEIVE]]
