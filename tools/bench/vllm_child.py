"""A vLLM engine in a process of its own: answers a JSON line for each line [command, {arguments}]; `vllm_process.py` starts it.

Runs in an environment that has vLLM, as `python -m mooncask.tools.bench.vllm_child`. The engine is inside this process, so that
its connector can be looked at. The first line on stdin is what it is made of.
"""

import json
import os
import sys
import time
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer import get_kv_transfer_group

SETTLE_SECONDS_MAX = 30.0


class Engine:
    """The commands."""

    def __init__(self, engine: dict[str, Any], transfer: dict[str, Any] | None) -> None:
        config = None if transfer is None else KVTransferConfig(**transfer)
        self.llm = LLM(kv_transfer_config=config, enforce_eager=True, disable_log_stats=False, **engine)
        self.engine = self.llm.llm_engine
        self.connector = self.engine.engine_core.engine_core.scheduler.connector
        self._numbers = 0

    def generate(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """All at once; each answer has its tokens, what vLLM says was cached, and the seconds to its first token."""
        started = time.perf_counter()
        ids = [self.add(**request) for request in requests]
        answers: dict[str, dict[str, Any]] = {}
        while self.engine.has_unfinished_requests():
            self.note(self.engine.step(), answers, started)
        self.settle()
        return [answers[one] for one in ids]

    def add(self, prompt: list[int], max_tokens: int = 8, salt: str = "", params: dict[str, Any] | None = None) -> str:
        self._numbers += 1
        extra = {"kv_transfer_params": params} if params else None
        sampling = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False, extra_args=extra
        )
        given: dict[str, Any] = {"prompt_token_ids": prompt}
        if salt:
            given["cache_salt"] = salt
        self.engine.add_request(str(self._numbers), given, sampling)
        return str(self._numbers)

    def note(self, outputs: list[Any], answers: dict[str, dict[str, Any]], started: float) -> None:
        for output in outputs:
            answer = answers.setdefault(output.request_id, {"ttft": None})
            tokens = list(output.outputs[0].token_ids)
            if tokens and answer["ttft"] is None:
                answer["ttft"] = time.perf_counter() - started
            answer |= {"tokens": tokens, "cached": output.num_cached_tokens, "params": output.kv_transfer_params}

    def settle(self) -> None:
        """Steps on until saves are over and vLLM has freed the blocks of what ended."""
        until = time.monotonic() + SETTLE_SECONDS_MAX
        core = self.engine.engine_core.engine_core
        worker = get_kv_transfer_group().worker if self.connector is not None else None
        while core.scheduler.has_requests() or (worker is not None and (worker._saves or worker._loads)):
            assert time.monotonic() < until, "the engine does not come to rest"
            if core.scheduler.has_requests():
                self.engine.step()
            elif worker is not None:
                worker._collect_saves()
                time.sleep(0.001)

    def counters(self) -> dict[str, Any]:
        """Of both sides, and the engine's own: how often it preempted, and whether all its blocks are free."""
        worker, scheduler = get_kv_transfer_group(), self.connector
        pool = self.engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        totals: dict[str, Any] = {**worker.counters.totals, **scheduler.counters.totals}
        totals["faults"] = {**worker.worker.connection.faults, **scheduler.scheduler.connection.faults}
        totals["used_blocks"] = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
        totals["open_requests"] = len(scheduler.scheduler.states) + len(scheduler.scheduler.lookups._open)
        return totals

    def reset(self) -> bool:
        """Forgets the engine's own prefix cache."""
        return bool(self.llm.reset_prefix_cache())


def main(kind: type[Engine] = Engine) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints is no answer
    engine = kind(**json.loads(sys.stdin.readline()))
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        command, arguments = json.loads(line)
        try:
            answer = getattr(engine, command)(**arguments)
        except Exception as error:  # noqa: BLE001  # whatever it is, who asked is told
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
