"""Chunked pipeline parallelism and layer-wise overlap: what a prefill takes when its parts run at the same time.

Chunked pipeline: X nodes hold L/X layers each; a prompt is cut into chunks, and chunk i runs on stage s while chunk i+1
runs on stage s-1. Layer-wise: while layer l computes, the prefix of layer l+1 is loaded and the KV of layer l-1 stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mooncask.conductor.models.cost import PrefillModel


def chunk_seconds(model: PrefillModel, tokens: int, prefix: int, chunk: int) -> list[float]:
    """The cost of each chunk: chunk i attends to all tokens before it."""
    starts = range(prefix, tokens, chunk) if tokens > prefix else range(prefix, prefix + 1)
    return [model.seconds(min(start + chunk, tokens), start) for start in starts]


def through_pipeline(
    chunks: Sequence[float], stage_free: Sequence[float], now: float, hop_seconds: float
) -> list[float]:
    """When each stage is done with its last chunk: C[s,i] = max(C[s-1,i] + hop, C[s,i-1]) + t_i / X.

    `stage_free` says when each stage is done with earlier requests. The last value is the time of the first token.
    """
    arrivals = [now] * len(chunks)
    done = []
    for free in stage_free:
        clock = free
        for i, cost in enumerate(chunks):
            clock = max(arrivals[i], clock) + cost / len(stage_free)
            arrivals[i] = clock + hop_seconds
        done.append(clock)
    return done


def pipelined_prefill_seconds(
    model: PrefillModel, tokens: int, prefix: int, chunk: int, stages: int, hop_seconds: float = 0.0
) -> float:
    """Time to first token of one request on an idle group of `stages` nodes."""
    return through_pipeline(chunk_seconds(model, tokens, prefix, chunk), [0.0] * stages, 0.0, hop_seconds)[-1]


def best_chunk(
    model: PrefillModel, tokens: int, prefix: int, stages: int, hop_seconds: float, chunk_min: int = 1024
) -> int:
    """The chunk of a power of two times `chunk_min` tokens with the earliest first token; the larger one if equal."""
    sizes = [chunk_min]
    while sizes[-1] < tokens - prefix:
        sizes.append(sizes[-1] * 2)
    return min(
        reversed(sizes), key=lambda size: pipelined_prefill_seconds(model, tokens, prefix, size, stages, hop_seconds)
    )


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How a group of `stages` nodes prefills; `chunk_tokens = 0` chooses the best chunk for each request."""

    stages: int
    chunk_tokens: int
    hop_seconds: float

    def chunk_for(self, model: PrefillModel, tokens: int, prefix: int) -> int:
        if self.chunk_tokens:
            return self.chunk_tokens
        if self.stages == 1:
            return max(1, tokens - prefix)
        return best_chunk(model, tokens, prefix, self.stages, self.hop_seconds)

    def chunks(self, model: PrefillModel, tokens: int, prefix: int) -> list[float]:
        """Seconds of each chunk of a request."""
        return chunk_seconds(model, tokens, prefix, self.chunk_for(model, tokens, prefix))

    def seconds(self, model: PrefillModel, tokens: int, prefix: int) -> float:
        """Time to first token on an idle group."""
        if self.stages == 1:
            return model.seconds(tokens, prefix)
        chunk = self.chunk_for(model, tokens, prefix)
        return pipelined_prefill_seconds(model, tokens, prefix, chunk, self.stages, self.hop_seconds)


@dataclass(frozen=True, slots=True)
class LayerWise:
    """Costs of moving KV beside a prefill of `layers` layers.

    `store_fixed_seconds` is what stays visible of an overlapped store whatever the length (read off ARX figure 7).
    """

    layers: int
    store_fixed_seconds: float = 0.0

    def execution_seconds(self, load_seconds: float, compute_seconds: float) -> float:
        """Loading the prefix overlaps with computing: the longer of both, and the first layer's load before it."""
        return max(load_seconds, compute_seconds) + min(load_seconds, compute_seconds) / self.layers

    def visible_store_seconds(self, store_seconds: float, compute_seconds: float) -> float:
        """What storing adds: the last layer's share, and whatever is longer than the computing it hides behind."""
        residual = store_seconds / self.layers
        return self.store_fixed_seconds + max(residual, store_seconds - compute_seconds)
