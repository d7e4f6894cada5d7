"""Prefill at one node, decode at two others: the tokens are those of a run without any store, also when a node dies half-way."""

from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

from cluster_nodes import ClusterNodes, Node
from msgspec.structs import replace
from tiny_model import prompt_of, write_tiny_llama

from mooncask.engine_adapter.transformers.messages import Loaded, Request
from mooncask.engine_adapter.transformers.worker_process import WorkerProcess, WorkerSettings

BLOCK = 16
TOKENS = 320
OPTIONS = {"load": "always", "block-tokens": str(BLOCK), "prefill-chunk": "24", "deadline-seconds": "5"}


@pytest.mark.slow
def test_decode_at_other_nodes_loads_what_prefill_stored_at_one_and_answers_the_same_tokens(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny")
    with ExitStack() as stack:
        nodes = stack.enter_context(ClusterNodes(tmp_path))
        one, two, three = nodes.start("n1", "n2", "n3")
        log = stack.enter_context((tmp_path / "workers.log").open("wb"))

        def worker(role: str, node: Node) -> WorkerProcess:
            settings = WorkerSettings(role, model, node.daemon.socket_path, OPTIONS)
            return stack.enter_context(WorkerProcess(settings, log))

        prefill, second, third = worker("prefill", one), worker("decode", two), worker("decode", three)
        for each in (prefill, second, third):
            each.ready()
        requests = [Request(str(seed), prompt_of(TOKENS, seed), max_tokens=12) for seed in range(3)]
        expected = [second.decode(replace(request, use_store=False)).tokens for request in requests]
        loaded = Loaded(peer=(TOKENS - 1) // BLOCK * BLOCK)

        prefill.prefill(requests[0])
        answer = second.decode(requests[0])
        assert (answer.tokens, answer.loaded) == (expected[0], loaded)
        answer = second.decode(requests[0])
        assert (answer.tokens, answer.loaded.peer) == (expected[0], 0), "it is a replica now"
        prefill.prefill(requests[1])
        one.daemon.kill()
        answer = third.decode(requests[0])
        assert (answer.tokens, answer.loaded) == (expected[0], loaded), "from the second node"
        answer = third.decode(requests[1])
        assert answer.tokens == expected[1], "what died with the first node is computed"
        assert answer.loaded.total + answer.computed == TOKENS
        assert third.decode(requests[2]).tokens == expected[2]
