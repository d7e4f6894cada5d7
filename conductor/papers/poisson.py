"""ARX figures 11 and 12: data sets known by their mean lengths only, with Poisson arrivals; [3P+1D] against vLLM [4M]."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mooncask.conductor.papers.report import Figure, Inputs, Line
from mooncask.conductor.simulator.cluster import Cluster, Coupled, Scheduling
from mooncask.conductor.simulator.simulate import simulate
from mooncask.conductor.traces.request import Request

REQUESTS = 400
BLOCK = 512


@dataclass(frozen=True, slots=True)
class DataSet:
    """Lengths of ARX table 2. `questions` requests share each document, which is `cached` of the prompt."""

    name: str
    input_tokens: int
    output_tokens: int
    cached: float
    questions: int
    published: float
    word: str = "direction only"


DATA_SETS = (
    DataSet("ArXiv Summarization", 8088, 229, 0.0, 1, 1.20),
    DataSet("L-Eval", 19_019, 72, 0.9, 10, 1.40),
    DataSet("simulated 16k", 16_384, 512, 0.5, 20, 1.50, "published: +50 % to +525 % over the four lengths"),
    DataSet("simulated 32k", 32_768, 512, 0.5, 20, 1.50, "as above"),
    DataSet("simulated 64k", 65_536, 512, 0.5, 20, 1.50, "as above"),
    DataSet("simulated 128k", 131_072, 512, 0.5, 20, 1.50, "as above"),
)


def figures_11_and_12(inputs: Inputs) -> Figure:
    lines = []
    for data in DATA_SETS:
        apart = _greatest_rate(Cluster(prefill_nodes=3, decode_nodes=1), data)
        coupled = Cluster(
            coupled_nodes=4, scheduling=Scheduling(placement="load-balancing"), coupled=Coupled(prefix_caching=True)
        )
        together = _greatest_rate(coupled, data)
        lines.append(Line(f"requests/s, {data.name}, [3P+1D]", apart))
        lines.append(Line(f"requests/s, {data.name}, [4M]", together))
        lines.append(Line(f"gain, {data.name}", apart / together if together else 0.0, data.published, data.word))
    verdict = (
        "The greatest Poisson rate at which P90 TTFT stays within 10 times and P90 TBT within 5 times the unloaded value. "
        "Lengths are drawn around the published means (+-30 %). The baseline here has prefix caching."
    )
    return Figure("arx-11", "data sets by length (also figure 12)", f"{REQUESTS} requests a run", lines, (), verdict)


def poisson_trace(data: DataSet, rate: float, seed: int = 0) -> list[Request]:
    """Requests of a data set that arrive at `rate` a second."""
    source, time, requests = random.Random(seed), 0.0, []
    documents = max(1, REQUESTS // data.questions)
    fresh = iter(range(10**6, 10**9))
    for _ in range(REQUESTS):
        time += source.expovariate(rate)
        tokens = round(data.input_tokens * source.uniform(0.7, 1.3))
        shared = int(tokens * data.cached) // BLOCK
        document = source.randrange(documents) * 1000
        keys = [document + i for i in range(shared)]
        keys += [next(fresh) for _ in range(-(-tokens // BLOCK) - shared)]
        requests.append(Request(round(time * 1000), tokens, data.output_tokens, tuple(keys)))
    return requests


def _greatest_rate(cluster: Cluster, data: DataSet) -> float:
    low, high = 0.0, 16.0
    while high - low > max(0.01, 0.03 * low):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(cluster, data, poisson_trace(data, middle)) else (low, middle)
    return low


def _within(cluster: Cluster, data: DataSet, requests: Sequence[Request]) -> bool:
    alone_ttft = cluster.prefill_costs().seconds(data.input_tokens, 0)
    alone_tbt = cluster.decode_costs().seconds(1, data.input_tokens)
    run = simulate(cluster, requests)
    return run.quantile("ttft", 0.9) <= 10 * alone_ttft and run.quantile("tbt_p90", 0.9) <= 5 * alone_tbt
