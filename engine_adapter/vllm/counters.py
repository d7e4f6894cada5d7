"""What a connector counts. The names are those of vLLM's log line and, behind `mooncask_`, of its Prometheus metrics."""

import threading
from collections import Counter

TEXTS = {
    "lookups": "Look-ups of prompts",
    "lookup_hit_tokens": "Tokens that look-ups promised to load",
    "loaded_blocks": "Blocks really copied into the engine's cache",
    "loaded_bytes": "Bytes of them",
    "layerwise_loads": "Requests that were loaded within a step, layer by layer",
    "load_failed_blocks": "Blocks that a look-up promised and loading did not bring",
    "saved_blocks": "Blocks that were new to the store",
    "known_blocks": "Blocks that the store had already",
    "dropped_blocks": "Blocks that were not saved: no room, no daemon, a preemption, too many waiting",
    "captured_blocks": "Blocks copied aside, since sliding windows left them behind before they were saved",
    "passed_blocks": "Blocks of which sliding layers had dropped their part before they could be saved",
    "slow_loads": "Look-ups whose blocks were left, since computing them is faster",
    "bypassed_requests": "Requests that the store can't describe",
    "early_handovers": "Prompts that another engine was still computing when they were looked up",
    "refused_handovers": "Hand-overs of another family or prompt",
    "store_faults": "Calls to the daemon that failed",
}


class Counters:
    """Totals, and what was added since they were last taken. Any thread may add."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self._new: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, count: int = 1) -> None:
        assert name in TEXTS, name
        with self._lock:
            self.totals[name] += count
            self._new[name] += count

    def take(self) -> dict[str, int]:
        """What was added since the last time; empty for nothing."""
        with self._lock:
            new, self._new = self._new, Counter()
        return {name: count for name, count in new.items() if count}
