"""One run of `mooncask bench vllm`: time to first token of vLLM cold, and with the prefix in DRAM, on NVMe and at a peer.

Two daemons of its own that know each other, and an engine at each. The first engine computes prompts and finds them again in
its daemon's memory, the second finds them there too, over the network; then the first daemon is started again, which leaves
it what it has on its disk. What is called a hit was one: blocks really loaded are counted.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.table import Table

from mooncask.errors import WorkerUnavailable
from mooncask.tools.bench.daemon_process import DaemonProcess
from mooncask.tools.bench.peers import free_port
from mooncask.tools.bench.vllm_process import BLOCK_TOKENS, VllmEngine

TOKEN_MAX = 1000
"""Tokens are drawn below it: every model has so many."""
WAKE_ATTEMPTS = 60
WAKE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class VllmPlan:
    """Prompts have one token more than whole blocks: the last token is always computed."""

    tokens: tuple[int, ...] = (513, 1025, 2049)
    repeats: int = 3
    dram_bytes: int = 1536 << 20
    nvme_bytes: int = 4 << 30
    segment_bytes: int = 64 << 20


FULL = VllmPlan()
QUICK = VllmPlan((129,), 1, 256 << 20, 1 << 30, 16 << 20)


@dataclass(slots=True)
class Row:
    """Median seconds to the first token of prompts of this length."""

    tokens: int
    cold_seconds: float
    dram_seconds: float
    peer_seconds: float
    nvme_seconds: float = 0.0

    def as_json(self) -> dict[str, float]:
        return asdict(self)


def table(rows: Sequence[Row]) -> Table:
    found = Table(title="vLLM on CPU, time to first token", title_justify="left")
    for heading in ("prompt", "cold s", "DRAM hit s", "NVMe hit s", "peer hit s"):
        found.add_column(heading, justify="right")
    for row in rows:
        figures = (row.cold_seconds, row.dram_seconds, row.nvme_seconds, row.peer_seconds)
        found.add_row(f"{row.tokens:,}", *(f"{seconds:.3f}" for seconds in figures))
    return found


def run(
    plan: VllmPlan, command: Sequence[str], model: Path, folder: Path, progress: Callable[[str], None]
) -> list[Row]:
    """`folder` is its own. Raises WorkerUnavailable when an engine does not start, or did not load what it should have."""
    with ExitStack() as stack:
        here, there = stack.enter_context(_nodes(plan, folder))
        progress("starting two daemons and two engines")
        engines = [_launched(stack, command, model, folder, node) for node in (here, there)]
        for engine in engines:
            engine.ready()
            engine.generate([_prompt(0, 2 * BLOCK_TOKENS)], max_tokens=2)
        return _Bench(plan, here, engines[0], engines[1], progress).rows()


class _Node:
    """A daemon that can be started again."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.name, self._folder, self._settings = folder.name, folder, settings
        folder.mkdir()
        self.daemon = DaemonProcess(folder, settings)

    def restart(self) -> None:
        self.daemon.stop()
        self.daemon = DaemonProcess(self._folder, self._settings)

    def stop(self) -> None:
        self.daemon.stop()


@contextmanager
def _nodes(plan: VllmPlan, folder: Path) -> Iterator[tuple[_Node, _Node]]:
    ports = [free_port(), free_port()]
    with ExitStack() as stack:
        nodes = []
        for name, own, other in (("here", ports[0], ports[1]), ("there", ports[1], ports[0])):
            settings = {
                "node_name": name,
                "cluster_listen": f"127.0.0.1:{own}",
                "cluster_peers": f"127.0.0.1:{other}",
                "cluster_secret": "of this bench",
                "dram_capacity": str(plan.dram_bytes),
                "nvme_path": str(folder / name / "nvme"),
                "nvme_capacity": str(plan.nvme_bytes),
                "nvme_segment": str(plan.segment_bytes),
                "http_listen": "127.0.0.1:0",
            }
            nodes.append(_Node(folder / name, settings))
            stack.callback(nodes[-1].stop)
        yield nodes[0], nodes[1]


def _launched(stack: ExitStack, command: Sequence[str], model: Path, folder: Path, node: _Node) -> VllmEngine:
    settings = {"load": "always", "deadline_ms": 5000}
    socket = str(node.daemon.socket)
    engine = VllmEngine.launch(command, model, folder, socket=socket, extra=settings, name=f"engine-{node.name}")
    return stack.enter_context(engine)


class _Bench:
    def __init__(
        self, plan: VllmPlan, node: _Node, first: VllmEngine, second: VllmEngine, progress: Callable[[str], None]
    ) -> None:
        """`node`: the first engine's."""
        self._plan, self._node, self._first, self._second, self._progress = plan, node, first, second, progress

    def rows(self) -> list[Row]:
        prompts = {
            tokens: [_prompt(tokens * 100 + number, tokens) for number in range(self._plan.repeats)]
            for tokens in self._plan.tokens
        }
        rows = []
        for tokens, some in prompts.items():
            self._progress(f"prompts of {tokens} tokens")
            cold, dram = _ttft(self._first, some, hits=False), _ttft(self._first, some, hits=True)
            rows.append(Row(tokens, cold, dram, _ttft(self._second, some, hits=True)))
        self._progress("starting the first daemon again")
        self._node.restart()
        self._awake()
        for row in rows:
            row.nvme_seconds = _ttft(self._first, prompts[row.tokens], hits=True)
        return rows

    def _awake(self) -> None:
        """Until both sides of the engine use their daemon again, which was away."""
        engine = self._first
        for attempt in range(WAKE_ATTEMPTS):
            before = engine.counters()
            engine.generate([_prompt(attempt + 1, BLOCK_TOKENS + 8)], max_tokens=1)
            after = engine.counters()
            if all(after.get(name, 0) > before.get(name, 0) for name in ("saved_blocks", "lookups")):
                return
            time.sleep(WAKE_SECONDS)
        raise WorkerUnavailable("vLLM", f"it does not use its daemon, which was started again\n{engine.said()}\n")


def _ttft(engine: VllmEngine, prompts: Sequence[Sequence[int]], hits: bool) -> float:
    """The median of what each took, one after another."""
    seconds = []
    for prompt in prompts:
        engine.ask("reset")
        before = engine.counters().get("loaded_blocks", 0)
        (answer,) = engine.generate([prompt], max_tokens=2)
        loaded = engine.counters().get("loaded_blocks", 0) - before
        wanted = len(prompt) // BLOCK_TOKENS if hits else 0
        if loaded != wanted:
            raise WorkerUnavailable("vLLM", f"it loaded {loaded} blocks where {wanted} were stored\n{engine.said()}\n")
        seconds.append(float(answer["ttft"]))
    return statistics.median(seconds)


def _prompt(number: int, tokens: int) -> list[int]:
    """Another number's begins otherwise."""
    return [int(token) for token in np.random.default_rng(number).integers(1, TOKEN_MAX, tokens)]
