"""Prefill at one node, decode at two others: the tokens are those of a run without any store, also when a node dies half-way."""

from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import torch
from cluster_nodes import ClusterNodes, Node
from msgspec.structs import replace
from tiny_model import prompt_of, write_tiny_llama
from worker_server import WorkerServerProcess

from mooncask.client.worker_api import DecodeCall, DecodeDone, PrefillCall, Tokens
from mooncask.engine_adapter.transformers.messages import Loaded, Request
from mooncask.engine_adapter.transformers.model import load_model
from mooncask.engine_adapter.transformers.sampling import choose
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


@pytest.mark.slow
def test_decode_at_another_node_that_begins_with_the_prefill_takes_its_layers_as_they_are_written(
    tmp_path: Path,
) -> None:
    """The request is given to decode when prefill has started; the tokens are those of one worker without a store."""
    model = write_tiny_llama(tmp_path / "tiny")
    options = {"load": "always", "block_tokens": str(BLOCK), "prefill_chunk": "48", "slot_tokens": "2048"}
    prompt = prompt_of(1200, 7)
    with ExitStack() as stack:
        one, two = stack.enter_context(ClusterNodes(tmp_path)).start("n1", "n2")

        def server(name: str, role: str, node: Node) -> WorkerServerProcess:
            return stack.enter_context(
                WorkerServerProcess.start(tmp_path, name, role, model, node.daemon.socket_path, **options)
            )

        prefill, decode = server("p1", "prefill", one), server("d1", "decode", two)
        with prefill.open(PrefillCall(id="p", tokens=prompt)) as response:
            lines = response.iter_lines()
            assert len([next(lines), next(lines)]) == 2, "admitted, started: its blocks are announced"
            answer = decode.lines(DecodeCall(id="d", tokens=prompt, max_tokens=8, wait_seconds=20))
            list(lines)
        done = answer[-1]
        assert isinstance(done, DecodeDone) and (done.cached_tokens, done.faults) == (1184, {})
        counters = two.counters()
        assert counters["peer_blocks_followed"] > 0 and counters["peer_layers_pulled"] > 0
        assert counters.get("peer_follows_unlike", 0) == 0
        alone = tokens_alone(model, prompt, 8)
        assert [token for line in answer if isinstance(line, Tokens) for token in line.tokens] == alone


def tokens_alone(model: Path, prompt: list[int], count: int) -> list[int]:
    """Greedy, by the library's own cache, one token a pass."""
    module, tokens = load_model(model, "float32", BLOCK).module, list(prompt)
    for _ in range(count):
        with torch.inference_mode():
            logits = module(input_ids=torch.tensor([tokens])).logits[0, -1].float().numpy()
        tokens.append(choose(logits, 0.0, 0, len(tokens) - len(prompt)).token)
    return tokens[len(prompt) :]
