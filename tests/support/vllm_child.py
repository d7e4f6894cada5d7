"""The bench's engine with more commands, which only tests need; `vllm_process.py` starts it with vLLM's python."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from mooncask.tools.bench.vllm_child import Engine, main


class TestedEngine(Engine):
    """The commands."""

    def run(
        self,
        requests: list[dict[str, Any]],
        until: str,
        abort: list[int] | None = None,
        kill: int = 0,
        freeze: int = 0,
    ) -> dict[str, Any]:
        """Adds requests, steps until one of them has a status, kills a process or aborts some, and runs the others to their end;
        a process that is frozen then goes on when they have ended."""
        started = time.perf_counter()
        ids, abort = [self.add(**request) for request in requests], abort or []
        answers: dict[str, dict[str, Any]] = {}
        scheduler = self.engine.engine_core.engine_core.scheduler
        while not (states := [one.status.name for one in scheduler.requests.values()]) or until not in states:
            assert self.engine.has_unfinished_requests(), f"no request was ever {until}"
            self.note(self.engine.step(), answers, started)
        if kill:
            os.kill(kill, signal.SIGKILL)
        if freeze:
            os.kill(freeze, signal.SIGSTOP)
        self.engine.abort_request([ids[index] for index in abort])
        try:
            while self.engine.has_unfinished_requests():
                self.note(self.engine.step(), answers, started)
        finally:
            if freeze:
                os.kill(freeze, signal.SIGCONT)
        self.settle()
        kept = [index for index in range(len(ids)) if index not in abort]
        return {"states": states, "answers": [answers[ids[index]] for index in kept]}

    def generate_and_kill(self, requests: list[dict[str, Any]], kill: int) -> list[dict[str, Any]]:
        """As `generate`; a process dies between the first match and the load that follows it."""
        build, killed = self.connector.build_connector_meta, []

        def built(output: Any) -> Any:
            meta = build(output)
            if meta.plan.loads and not killed:
                killed.append(os.kill(kill, signal.SIGKILL))
                while Path(f"/proc/{kill}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
                    time.sleep(0.001)
            return meta

        self.connector.build_connector_meta = built
        try:
            return self.generate(requests)
        finally:
            del self.connector.build_connector_meta

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
