"""The bench's engine with more commands, which only tests need; `vllm_process.py` starts it with vLLM's python."""

import os
import signal
import time
from typing import Any

from mooncask.tools.bench.vllm_child import Engine, main


class TestedEngine(Engine):
    """The commands."""

    def run(
        self, requests: list[dict[str, Any]], until: str, abort: list[int] | None = None, kill: int = 0
    ) -> dict[str, Any]:
        """Adds requests, steps until one of them has a status, kills a process or aborts some, and runs the others to their end."""
        started = time.perf_counter()
        ids, abort = [self.add(**request) for request in requests], abort or []
        answers: dict[str, dict[str, Any]] = {}
        scheduler = self.engine.engine_core.engine_core.scheduler
        while not (states := [one.status.name for one in scheduler.requests.values()]) or until not in states:
            assert self.engine.has_unfinished_requests(), f"no request was ever {until}"
            self.note(self.engine.step(), answers, started)
        if kill:
            os.kill(kill, signal.SIGKILL)
        self.engine.abort_request([ids[index] for index in abort])
        while self.engine.has_unfinished_requests():
            self.note(self.engine.step(), answers, started)
        self.settle()
        kept = [index for index in range(len(ids)) if index not in abort]
        return {"states": states, "answers": [answers[ids[index]] for index in kept]}

    def namespace(self) -> dict[str, str]:
        handle = self.connector.scheduler.connection.handles[0]
        return {"name": handle.name, "fingerprint": handle.fingerprint.hex()}

    def preemptions(self) -> int:
        metrics = {metric.name: metric for metric in self.llm.get_metrics()}
        return int(metrics["vllm:num_preemptions"].value)

    def metrics(self) -> dict[str, float]:
        return {m.name: m.value for m in self.llm.get_metrics() if m.name.startswith("vllm:mooncask_")}


if __name__ == "__main__":
    main(TestedEngine)
