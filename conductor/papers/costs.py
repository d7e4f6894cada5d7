"""Figures that follow from the cost models and links alone, without a simulated cluster."""

from collections.abc import Sequence

from mooncask.conductor.models.analytical import GPUS, MODELS, bandwidth_needed
from mooncask.conductor.models.fitted import FITTED_DECODE, FITTED_PREFILL
from mooncask.conductor.models.pipeline import LayerWise
from mooncask.conductor.papers.report import Curve, Figure, Inputs, Line, Plot

PROMPTS = (8192, 16_384, 32_768, 65_536, 131_072)
NETWORK = 87e9
HOST_TO_DEVICE = 89e9
KV_BYTES = MODELS["llama3-70b"].kv_bytes_per_token


def equation_2(inputs: Inputs) -> Figure:
    """The bandwidth above which reuse beats recomputing."""
    shape = MODELS["llama3-70b"]
    lines = [
        Line(f"GB/s, 8 x {name}", bandwidth_needed(shape, 8 * GPUS[gpu].flops, 8192) / 1e9, value)
        for name, gpu, value in (("A800", "a800-80g", 6.0), ("H800", "h800-80g", 19.0))
    ]
    lines.append(Line("bytes of KV a token", shape.kv_bytes_per_token, 327_680))
    lines.append(Line("tokens in 1 TB of DRAM", 1e12 / shape.kv_bytes_per_token, 3e6, "the paper rounds"))
    verdict = "Exact; the published bandwidths are rounded up to whole GB/s."
    return Figure("fast25-eq2", "when loading KV beats computing it", "LLaMA3-70B, prefix 8,192", lines, (), verdict)


def figure_14(inputs: Inputs) -> Figure:
    """Prefill, load, transfer and decode by prompt length."""
    published = (1.0, 1.9, 4.4, 10.5, 27.5), (0.13, 0.25, 0.47, 0.9, 2.35), (3.4, 3.5, 3.5, 3.7, 3.9)
    whole = [FITTED_PREFILL.seconds(n, 0) for n in PROMPTS]
    cached = [_cached_prefill(n) for n in PROMPTS]
    decode = [sum(FITTED_DECODE.seconds(1, n + i) for i in range(128)) for n in PROMPTS]
    lines = []
    for name, ours, theirs in zip(
        ("prefill s, no prefix", "prefill s, 95 % prefix", "decode s, 128 tokens"),
        (whole, cached, decode),
        published,
        strict=True,
    ):
        lines += [Line(f"{name}, {n // 1024}k", o, p) for n, o, p in zip(PROMPTS, ours, theirs, strict=True)]
    lines.append(Line("transfer s, 128k", PROMPTS[-1] * KV_BYTES / NETWORK, 0.5))
    lines.append(Line("load s, 128k", PROMPTS[-1] * KV_BYTES / HOST_TO_DEVICE, 0.45, "what 89 GB/s was taken from"))
    saved = 1 - cached[-1] / whole[-1]
    lines.append(Line("prefill saved at 128k", saved, 0.92))
    verdict = (
        "The rows without prefix and the decode rows at 8k and 128k are what the costs were fitted to, so they agree by "
        "construction; those with 95 % prefix were not: they come out low, since the published ones are bound by loading "
        "in part."
    )
    plot = Plot("fast25-14", "prompt tokens", "seconds", _curves(whole, cached, decode), logarithmic=True)
    return Figure("fast25-14", "cost by prompt length", "fitted costs", lines, [plot], verdict)


def _cached_prefill(tokens: int) -> float:
    prefix = int(tokens * 0.95)
    load = prefix * KV_BYTES / HOST_TO_DEVICE
    return LayerWise(80).execution_seconds(load, FITTED_PREFILL.seconds(tokens, prefix))


def _curves(*series: Sequence[float]) -> list[Curve]:
    names = ("prefill, no prefix", "prefill, 95 % prefix", "decode of 128 tokens")
    return [Curve(name, PROMPTS, values) for name, values in zip(names, series, strict=True)]


def figure_12(inputs: Inputs) -> Figure:
    """40 GB between two nodes: an input of the simulator, not an outcome."""
    size = 128 * 1024 * KV_BYTES
    lines = [
        Line("s for 128k tokens, 4 x 200 Gbps", size / NETWORK, 0.46, "87 GB/s is the published effective speed"),
        Line("s for 128k tokens, 8 x 400 Gbps", size / 190e9, 0.21, "190 GB/s likewise"),
    ]
    reason = (
        "It measures RDMA hardware that is not here; its speeds are taken over as they are, so agreement means nothing."
    )
    return Figure("fast25-12", "transfer engine", "published speeds", lines, (), "", reason)


def layer_wise(inputs: Inputs) -> Figure:
    """ARX figure 7: the visible cost of storing KV, layer by layer and after the prefill."""
    store_bandwidth = 128e3 * KV_BYTES / 0.86
    lengths = (8192, 16_384, 32_768, 65_536, 131_072)
    serial = [n * KV_BYTES / store_bandwidth for n in lengths]
    overlapped = [
        LayerWise(80).visible_store_seconds(s, FITTED_PREFILL.seconds(n, 0))
        for n, s in zip(lengths, serial, strict=True)
    ]
    lines = [
        Line("serial store s, 8k", serial[0], 0.11, "read off by a third party"),
        Line("serial store s, 128k", serial[-1], 0.86, "sets the bandwidth"),
        Line("layer-wise store s, 8k", overlapped[0], 0.1, "without the fixed 0.1 s"),
        Line("layer-wise store s, 128k", overlapped[-1], 0.1, "without the fixed 0.1 s"),
    ]
    verdict = (
        "The direction holds: overlapped, storing hardly grows with length. The published curve has a constant of about "
        "0.1 s whose cause is not published; the model shows only the last layer's share."
    )
    curves = [Curve("serial", lengths, serial), Curve("layer-wise", lengths, overlapped)]
    plot = Plot("arx-7", "prompt tokens", "visible store seconds", curves)
    return Figure("arx-7", "layer-wise store", "fitted costs, store at 49 GB/s", lines, [plot], verdict)
