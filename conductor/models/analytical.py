"""Costs computed from the FLOPs of a named model and the speed of a named GPU (FAST'25 section 3, equations 1 and 2).

The attention term counts a = 4 as published, or a = 2 for a causal mask; with a = 2 the published prefill times mean a
utilisation (MFU) of 0.42 to 0.55, with a = 4 an implausible 0.46 to 0.88. So the default is a = 2 at 0.5.
"""

from dataclasses import dataclass

from mooncask.conductor.models.cost import LinearStep, PolynomialPrefill
from mooncask.errors import BadArgument

LINEAR_FLOPS = 22
"""b of equation 1: FLOPs per token and layer, in units of hidden size squared."""
PUBLISHED_ATTENTION, CAUSAL_ATTENTION = 4, 2


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the costs depend on. `gqa` is query heads per KV head, `value_bytes` the size of one number."""

    layers: int
    hidden: int
    gqa: int
    parameters: float
    value_bytes: int = 2

    @property
    def kv_bytes_per_token(self) -> int:
        return self.layers * (2 * self.hidden // self.gqa) * self.value_bytes


@dataclass(frozen=True, slots=True)
class Gpu:
    """Dense 16-bit FLOP/s, bytes/s of device memory, bytes of device memory: the vendor's numbers for one device."""

    flops: float
    bandwidth: float
    memory_bytes: float


MODELS = {
    "llama2-70b": ModelShape(80, 8192, 8, 70e9),
    "llama3-70b": ModelShape(80, 8192, 8, 70.6e9),
    "llama3-8b": ModelShape(32, 4096, 4, 8.0e9),
    "qwen2.5-72b": ModelShape(80, 8192, 8, 72.7e9),
    "mistral-7b": ModelShape(32, 4096, 4, 7.2e9),
}
GPUS = {
    "a100-80g": Gpu(312e12, 2.039e12, 80e9),
    "a800-80g": Gpu(312e12, 2.039e12, 80e9),
    "h100-80g": Gpu(989e12, 3.35e12, 80e9),
    "h800-80g": Gpu(989e12, 3.35e12, 80e9),
    "h200-141g": Gpu(989e12, 4.8e12, 141e9),
    "l40s-48g": Gpu(362e12, 0.864e12, 48e9),
}


def find_model(name: str) -> ModelShape:
    """The shape of a named model; raises BadArgument with the names there are."""
    if name not in MODELS:
        raise BadArgument("model", repr(name), f"one of {', '.join(MODELS)}")
    return MODELS[name]


def find_gpu(name: str) -> Gpu:
    """The numbers of a named GPU; raises BadArgument with the names there are."""
    if name not in GPUS:
        raise BadArgument("gpu", repr(name), f"one of {', '.join(GPUS)}")
    return GPUS[name]


def prefill_flops(shape: ModelShape, tokens: int, prefix: int = 0, attention: int = PUBLISHED_ATTENTION) -> float:
    """Equation 1: l (a (n^2 - p^2) d + b (n - p) d^2)."""
    new = tokens - prefix
    return shape.layers * (
        attention * float(new) * (tokens + prefix) * shape.hidden + LINEAR_FLOPS * float(new) * shape.hidden**2
    )


def bandwidth_needed(shape: ModelShape, flops: float, prefix: int) -> float:
    """Equation 2: bytes/s above which loading `prefix` tokens of KV beats computing them at `flops` FLOP/s."""
    work = shape.gqa * (PUBLISHED_ATTENTION * prefix * shape.hidden + LINEAR_FLOPS * shape.hidden**2)
    return 2 * shape.hidden * shape.value_bytes * flops / work


def analytical_prefill(
    shape: ModelShape, gpu: Gpu, devices: int, mfu: float = 0.5, attention: int = CAUSAL_ATTENTION
) -> PolynomialPrefill:
    """Prefill on `devices` GPUs together at a utilisation of `mfu`."""
    speed = gpu.flops * devices * mfu
    linear = shape.layers * LINEAR_FLOPS * shape.hidden**2 / speed
    return PolynomialPrefill(linear, shape.layers * attention * shape.hidden / speed)


def analytical_decode(shape: ModelShape, gpu: Gpu, devices: int, efficiency: float = 0.6) -> LinearStep:
    """A decode step reads all weights and the batch's KV at a share of the memory bandwidth and computes each token.

    The parts are added, not overlapped, which keeps it linear. Communication between the devices is not modelled: it is
    why a measured `fixed` (25 ms on 8 A800) is larger than this one.
    """
    bandwidth = gpu.bandwidth * devices * efficiency
    per_request = 2 * shape.parameters / (gpu.flops * devices * efficiency)
    return LinearStep(
        shape.parameters * shape.value_bytes / bandwidth, per_request, shape.kv_bytes_per_token / bandwidth
    )


def kv_capacity_tokens(shape: ModelShape, gpu: Gpu, devices: int, memory_share: float = 0.9) -> int:
    """Tokens of KV that fit in the devices' memory beside the weights; 0 if the weights alone do not fit."""
    room = gpu.memory_bytes * devices * memory_share - shape.parameters * shape.value_bytes
    return max(0, int(room // shape.kv_bytes_per_token))
