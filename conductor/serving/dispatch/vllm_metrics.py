"""What of a vLLM server's /metrics the Conductor reads. Pure. Several engines behind one server are one worker: added up."""

import math
import re
from dataclasses import dataclass

from mooncask.client.worker_api import Step

_LINE = re.compile(r"^(process_start_time_seconds|vllm:[a-z_]+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([a-zA-Z_]+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """`started`: the server's start, as it says it; `kv_tokens`: how many fit into its KV cache; `kv_usage` of 1."""

    started: str = ""
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    kv_tokens: int = 0
    latency_sum: float = 0.0
    """Seconds between tokens of one answer, all since the start, and how many such pauses."""
    latency_count: float = 0.0

    @property
    def context_tokens(self) -> int:
        return round(self.kv_usage * self.kv_tokens)

    def step_since(self, before: "EngineMetrics") -> list[Step]:
        """What a decode step took since then, if there was one."""
        count, seconds = self.latency_count - before.latency_count, self.latency_sum - before.latency_sum
        if count <= 0 or seconds <= 0:
            return []
        return [Step(max(1, self.running), self.context_tokens, seconds / count)]


def read_metrics(text: str) -> EngineMetrics:
    """Lines that are not known, or not as expected, are passed over."""
    found: dict[str, list[float]] = {}
    started, kv_tokens = "", 0
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        name, labels, value = match.groups()
        if name == "process_start_time_seconds":
            started = value
        elif name == "vllm:cache_config_info":
            kv_tokens += _kv_tokens(dict(_LABEL.findall(labels or "")))
        else:
            found.setdefault(name, []).append(_number(value))
    usage = found.get("vllm:kv_cache_usage_perc", [])
    return EngineMetrics(
        started=started,
        running=round(_sum(found, "vllm:num_requests_running")),
        waiting=round(_sum(found, "vllm:num_requests_waiting")),
        kv_usage=sum(usage) / len(usage) if usage else 0.0,
        kv_tokens=kv_tokens,
        latency_sum=_sum(found, "vllm:inter_token_latency_seconds_sum"),
        latency_count=_sum(found, "vllm:inter_token_latency_seconds_count"),
    )


def _kv_tokens(labels: dict[str, str]) -> int:
    for names in (("kv_cache_size_tokens",), ("num_gpu_blocks", "block_size")):
        values = [labels.get(name, "") for name in names]
        if all(value.isdecimal() for value in values):
            product = 1
            for value in values:
                product *= int(value)
            return product
    return 0


def _sum(found: dict[str, list[float]], name: str) -> float:
    return sum(found.get(name, []))


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0
