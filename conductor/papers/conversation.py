"""Figures that run on the public conversation trace: table 2, figures 5, 8, 9, 10 and 11 of FAST'25, ARX table 1."""

from collections.abc import Sequence

from mooncask.conductor.papers.report import Curve, Figure, Inputs, Line, Plot
from mooncask.conductor.replay.policies import ReplayOptions, replay_named
from mooncask.conductor.replay.replay import BLOCK_TOKENS, Cache, ReplayResult, Tally, result
from mooncask.conductor.simulator.cluster import Cache as NodeCache
from mooncask.conductor.simulator.cluster import Cluster, Coupled, Scheduling
from mooncask.conductor.simulator.outcome import REPLICA_RANKS, Simulation
from mooncask.conductor.simulator.simulate import simulate
from mooncask.conductor.traces.request import Request
from mooncask.tiers.policies import make_policy

BALANCED = Scheduling(placement="load-balancing")
NODE_TOKENS = 3_000_000
BEYOND_BLOCKS = 390
"""Tokens that figure 9 implies to be equal beyond the last whole block that hits, which hash ids can't show."""


def table_2(inputs: Inputs) -> Figure:
    requests = inputs.conversation()
    count = len(requests)
    blocks = {key for request in requests for key in request.hash_ids}
    accesses = sum(len(request.hash_ids) for request in requests)
    lines = [
        Line("requests", count, 12_031),
        Line("mean input tokens", sum(r.input_length for r in requests) / count, 12_035),
        Line("mean output tokens", sum(r.output_length for r in requests) / count, 343),
        Line("cache ratio", 1 - len(blocks) / accesses, 0.40, "blocks; the paper does not define it"),
    ]
    return Figure("fast25-table2", "the conversation trace", "read", lines, (), "Counts and means are exact.")


def figure_5(inputs: Inputs) -> Figure:
    names = ("random", "load-balancing", "cache-aware", "kvcache-centric")
    published = (19.65, 5.27, 3.58, 3.07)
    runs = [_prefill_only(inputs, Cluster(prefill_nodes=8, decode_nodes=8, scheduling=_by(name))) for name in names]
    means = [run.mean("ttft") for run in runs]
    lines = [
        Line(f"mean TTFT s, {n}", m, p, "absolute values are not comparable")
        for n, m, p in zip(names, means, published, strict=True)
    ]
    lines += [
        Line(f"{names[i]} / {names[i + 1]}", means[i] / means[i + 1], published[i] / published[i + 1], "target +-15 %")
        for i in range(3)
    ]
    verdict = (
        "Order and ratios hold. Absolute values are 2.6 to 3 times low: the paper's split and overheads are unknown."
    )
    plot = Plot(
        "fast25-5", "TTFT s", "share of requests", [_cdf(n, r, "ttft") for n, r in zip(names, runs, strict=True)]
    )
    return Figure(
        "fast25-5", "scheduling policies", "8 prefill nodes x 3 M tokens, outputs of 1", lines, [plot], verdict
    )


def figure_8(inputs: Inputs) -> Figure:
    requests = inputs.conversation()
    mooncake = simulate(Cluster(prefill_nodes=8, decode_nodes=8), requests)
    unlimited = Cluster(prefill_nodes=8, decode_nodes=8, cache=NodeCache(unlimited=True))
    coupled = {
        "vLLM": Coupled(),
        "vLLM, prefix caching": Coupled(prefix_caching=True),
        "vLLM, chunked prefill": Coupled(batching="chunked", token_budget=512),
    }
    lines = [
        Line("Mooncake, 8 nodes x 3 M tokens", mooncake.mean("prefill_seconds"), 1.06, "target +-3 %"),
        Line("Mooncake, unlimited cache", simulate(unlimited, requests).mean("prefill_seconds"), 1.06),
    ]
    for (name, batching), multiple in zip(coupled.items(), (1.56, 1.43, 1.90), strict=True):
        run = simulate(Cluster(coupled_nodes=16, scheduling=BALANCED, coupled=batching), requests)
        lines.append(Line(name, run.mean("prefill_seconds"), 1.06 * multiple))
    verdict = "Mooncake and vLLM agree; chunked prefill depends on the chunk size (512 here), which is not published."
    return Figure("fast25-8", "prefill GPU seconds a request", "16 nodes", lines, (), verdict)


def figure_9(inputs: Inputs) -> Figure:
    capacities = (1e4, 1e5, 1e6, 2e6, 1e7, 5e7, 1e9)
    published = (0.045, 0.075, 0.087, 0.12, 0.33, 0.40, 0.40)
    requests = inputs.conversation()
    pairs = [_lru_and_first(requests, int(tokens // 512)) for tokens in capacities]
    mean_input = sum(request.input_length for request in requests) / len(requests)
    rates = [found.hit_rate for found, _ in pairs]
    finer = [found.token_weighted_hit_rate + BEYOND_BLOCKS * first / mean_input for found, first in pairs]
    lines = [
        Line(f"{what}, {tokens:.0e} tokens", rate, value, f"{100 * (rate - value):+.1f} points")
        for what, values in (("hit rate", rates), ("of tokens, 390 more where anything hits", finer))
        for tokens, rate, value in zip(capacities, values, published, strict=True)
    ]
    verdict = (
        "As it is, our curve lies 2.0 to 4.5 points lower, and the unlimited rate of this trace, .366 by exact count, can't become "
        "the published .40 under any policy. The difference is nearly the same at all capacities: 317 to 472 tokens for each "
        "request that hits anything. Equal text does not end where a block of 512 ends, and hash ids can't show how far it goes on: "
        "the beginning that all requests share has one whole block here, and of an earlier turn the last, half full block never "
        "matches. The paper's run had blocks of 256. The second set of rows counts tokens and adds 390 of them for each request "
        "that hits anything: all seven are then within a point of the published values, also the first, where plain LRU has lost the "
        "first block of two requests in five. The 390 are inferred from this very figure, not known."
    )
    curves = [Curve("lru", capacities, rates), Curve("of tokens, 390 more where anything hits", capacities, finer)]
    plot = Plot("fast25-9", "cache tokens", "hit rate", [*curves, Curve("published", capacities, published)], True)
    return Figure("fast25-9", "hit rate by capacity", "replay, one pool, LRU", lines, [plot], verdict)


def _lru_and_first(requests: Sequence[Request], blocks: int) -> tuple[ReplayResult, float]:
    """A replay under lru, and the share of requests whose first block hit."""
    cache, tally, first = Cache(blocks, make_policy("lru", blocks)), Tally(), 0
    for request in requests:
        hits = cache.resident_prefix(request.hash_ids)
        tally.count(request, hits, BLOCK_TOKENS)
        first += hits > 0
        cache.use(request, with_hints=False)
    return result("lru", blocks, tally, cache.evictions), first / len(requests)


def figure_10(inputs: Inputs) -> Figure:
    requests = inputs.conversation()
    pooled = Cluster(prefill_nodes=10, decode_nodes=6, scheduling=_by("kvcache-centric"))
    isolated = Cluster(prefill_nodes=10, decode_nodes=6, scheduling=BALANCED)
    aware = Cluster(prefill_nodes=10, decode_nodes=6, scheduling=_by("cache-aware"))
    shared, apart, local = (simulate(c, requests, output_tokens=1) for c in (pooled, isolated, aware))
    one_pool, one_node = (_lru(requests, blocks) for blocks in (10 * NODE_TOKENS // 512, NODE_TOKENS // 512))
    lines = [
        Line("hit rate, global cache", shared.hit_rate, 0.38),
        Line("hit rate, global cache, replay of one 30 M-token pool", one_pool, 0.38),
        Line("hit rate, local caches, load balancing", apart.hit_rate, 0.17),
        Line("hit rate, local caches, cache-aware", local.hit_rate, 0.17, "a router the paper does not describe"),
        Line("hit rate, one 3 M-token node alone", one_node, 0.17),
        Line("prefill s, global", shared.mean("prefill_seconds"), 1.05),
        Line("prefill s, local, load balancing", apart.mean("prefill_seconds"), 1.39),
        Line("prefill s, global / local", shared.mean("prefill_seconds") / apart.mean("prefill_seconds"), 0.76),
    ]
    verdict = (
        "Prefill times agree. The paper's local bar (.17) lies between blind balancing and a cache-aware router; how its "
        "requests were routed is not said."
    )
    return Figure("fast25-10", "global against local cache", "10 nodes x 3 M tokens, outputs of 1", lines, (), verdict)


def figure_11(inputs: Inputs) -> Figure:
    run = simulate(Cluster(prefill_nodes=8, decode_nodes=8), inputs.conversation())
    warm = [sample.replicas for sample in run.replicas if sample.time > 1800]
    means = [sum(sample[i] for sample in warm) / len(warm) for i in range(len(REPLICA_RANKS))]
    words = (8.0, 7.0, None, None)
    lines = [
        Line(f"mean replicas of rank {rank}", mean, value, "" if value else "published: 0 to 6, 0 to 3")
        for rank, mean, value in zip(REPLICA_RANKS, means, words, strict=True)
    ]
    times = [sample.time for sample in run.replicas]
    curves = [Curve(f"rank {r}", times, [s.replicas[i] for s in run.replicas]) for i, r in enumerate(REPLICA_RANKS)]
    verdict = (
        "Below the first, which every request shares, no key of this trace has more than 43 uses in the hour, and "
        "placement keeps them where they are, so few nodes hold them. The published 7 to 8 need another routing or ranking."
    )
    plot = Plot("fast25-11", "seconds", "nodes with a copy", curves)
    return Figure("fast25-11", "replicas of hot keys", "[8P+8D]", lines, [plot], verdict)


def arx_table_1(inputs: Inputs) -> Figure:
    capacities = (100_000, 50_000, 30_000, 10_000, 1000)
    published = {
        "lru": (0.51, 0.50, 0.48, 0.40, 0.30),
        "lfu": (0.51, 0.49, 0.43, 0.35, 0.30),
        "length-aware": (0.50, 0.48, 0.42, 0.35, 0.30),
    }
    lines = [
        Line(f"{policy}, {capacity:,} blocks", _replayed(inputs.conversation(), policy, capacity), value, "other trace")
        for policy, values in published.items()
        for capacity, value in zip(capacities, values, strict=True)
    ]
    return Figure(
        "arx-table1",
        "hit rate by policy",
        "conversation trace instead of ARX's; no target",
        lines,
        (),
        "The ordering LRU, LFU, LengthAware holds from 10,000 blocks up, more widely spread than published; at 1,000 it turns.",
        "ARX's trace is not in this folder, and a public replay of its released file gives other numbers than the table.",
    )


def _by(placement: str) -> Scheduling:
    return Scheduling(placement=placement)


def _prefill_only(inputs: Inputs, cluster: Cluster) -> Simulation:
    return simulate(cluster, inputs.conversation(), output_tokens=1)


def _lru(requests: Sequence[Request], blocks: int) -> float:
    return _replayed(requests, "lru", blocks)


def _replayed(requests: Sequence[Request], policy: str, blocks: int) -> float:
    return replay_named(policy, requests, blocks, ReplayOptions()).hit_rate


def _cdf(name: str, run: Simulation, field: str) -> Curve:
    values = sorted(getattr(outcome, field) for outcome in run.completed)
    return Curve(name, values, [(i + 1) / len(values) for i in range(len(values))])
