"""Counters as vLLM's log line and Prometheus metrics. What they mean is in `counters.py`."""

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from mooncask.engine_adapter.vllm.counters import TEXTS


@dataclass
class MooncaskStats(KVConnectorStats):  # type: ignore[misc]  # the checkers' environment has no vLLM
    """`data` holds what was added to each counter since the last time."""

    data: dict[str, int] = field(default_factory=dict)

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, count in other.data.items():
            self.data[name] = self.data.get(name, 0) + count
        return self

    def reduce(self) -> dict[str, int | float]:
        return {name: self.data[name] for name in TEXTS if self.data.get(name)}

    def is_empty(self) -> bool:
        return not self.data


class MooncaskMetrics(KVConnectorPromMetrics):  # type: ignore[misc]  # the checkers' environment has no vLLM
    """`vllm:mooncask_<counter>_total`, by engine."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._counters = {name: self._by_engine(name, text) for name, text in TEXTS.items()}

    def _by_engine(self, name: str, text: str) -> dict[int, Any]:
        metric: Any = self._counter_cls(
            name=f"vllm:mooncask_{name}", documentation=f"{text}.", labelnames=self._labelnames
        )
        return {engine: metric.labels(*values) for engine, values in self.per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, count in transfer_stats_data.items():
            self._counters[name][engine_idx].inc(count)
