"""Time to first token of vLLM on CPU: cold, and with the prefix in DRAM, on NVMe and at a peer. Prints a table.

    .venv/bin/python tests/engines/ttft_table.py [REPEATS]        (needs make engines; some minutes)

Two daemons that know each other and an engine at each; every figure is the median of REPEATS prompts of its own (3).
Not a test: it asserts only that what is called a hit was one, by counting blocks really loaded.
"""

import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from cluster_nodes import ClusterNodes, Node
from prompts import prompt
from vllm_process import BLOCK_TOKENS, VllmProcess

from mooncask.engine_adapter.transformers.model_files import cache_folder, smollm2_folder

LENGTHS = (513, 1025, 2049)
REPEATS = int(sys.argv[1]) if sys.argv[1:] else 3
SETTINGS = {"dram.capacity": "1536 MiB", "nvme.capacity": "4 GiB", "nvme.segment": "64 MiB"}


def ttfts(engine: VllmProcess, prompts: list[list[int]], hits: bool) -> float:
    """The median of what each took, one after another."""
    seconds = []
    for text in prompts:
        engine.ask("reset")
        before = engine.counters()
        (answer,) = engine.generate([text], max_tokens=2)
        loaded = engine.counters().get("loaded_blocks", 0) - before.get("loaded_blocks", 0)
        assert loaded == (len(text) // BLOCK_TOKENS if hits else 0), (loaded, engine.counters(), engine.said())
        seconds.append(answer["ttft"])
    return statistics.median(seconds)


def awake(engine: VllmProcess, number: int) -> None:
    """Until both sides of the engine use their daemon again, which was away."""
    for attempt in range(60):
        before = engine.counters()
        engine.generate([prompt(number + attempt, 40)], max_tokens=1)
        after = engine.counters()
        if all(after[name] > before[name] for name in ("saved_blocks", "lookups")):
            return
        time.sleep(0.5)
    raise AssertionError("the engine does not use its daemon")


def main() -> None:
    model = smollm2_folder(cache_folder(), lambda text: print(text, file=sys.stderr))
    rows = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mooncask-ttft-")))
        nodes = stack.enter_context(ClusterNodes(folder, SETTINGS))
        here, there = nodes.start("here", "there")
        engines = [begin(stack, model, folder, node) for node in (here, there)]
        for engine in engines:
            engine.ready()
            engine.generate([prompt(900, 64)], max_tokens=2)
        first, second = engines
        prompts = {tokens: [prompt(tokens + i, tokens) for i in range(REPEATS)] for tokens in LENGTHS}
        for tokens in LENGTHS:
            cold = ttfts(first, prompts[tokens], hits=False)
            dram = ttfts(first, prompts[tokens], hits=True)
            peer = ttfts(second, prompts[tokens], hits=True)
            rows.append([tokens, cold, dram, 0.0, peer])
        here.restart()
        awake(first, 5000)
        for row in rows:
            row[3] = ttfts(first, prompts[int(row[0])], hits=True)
    print("| prompt | cold | DRAM hit | NVMe hit | peer hit |\n|---|---|---|---|---|")
    for tokens, *seconds in rows:
        print(f"| {tokens} | " + " | ".join(f"{one:.3f} s" for one in seconds) + " |")


def begin(stack: ExitStack, model: Path, folder: Path, node: Node) -> VllmProcess:
    return stack.enter_context(
        VllmProcess.begin(
            model,
            folder,
            socket=node.daemon.socket_path,
            extra={"load": "always", "deadline_ms": 5000},
            name=f"engine-{node.name}",
        )
    )


if __name__ == "__main__":
    main()
