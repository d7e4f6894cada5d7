"""The real model: its tokens through the store are those that transformers itself generates."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

for needed in ("torch", "transformers", "gguf", "sentencepiece", "accelerate"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: pip install mooncask[demo]")

import msgspec
from daemon_process import DaemonProcess

from mooncask.engine_adapter.transformers.chat import Chat
from mooncask.engine_adapter.transformers.messages import Request
from mooncask.engine_adapter.transformers.model_files import cache_folder, smollm2_folder
from mooncask.engine_adapter.transformers.worker_process import WorkerProcess, WorkerSettings
from mooncask.errors import ConfigError
from mooncask.tools.demo.questions import document

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

ANSWER = 16
GENERATE = """
import json, sys, torch
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)
prompt = json.load(sys.stdin)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
out = model.generate(torch.tensor([prompt]), max_new_tokens=int(sys.argv[2]), do_sample=False)
print(json.dumps(out[0, len(prompt):].tolist()))
"""


@pytest.fixture(scope="module")
def model() -> Path:
    try:
        return smollm2_folder(cache_folder(), lambda _: None)
    except ConfigError as error:
        pytest.skip(f"the demo's model is not to be had: {error}")


@pytest.fixture(scope="module")
def chat(model: Path) -> Chat:
    return Chat(model)


@pytest.fixture(scope="module")
def workers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[WorkerProcess]]:
    folder = tmp_path_factory.mktemp("smollm2")
    with ExitStack() as stack:
        daemon = stack.enter_context(DaemonProcess.start(folder, {"dram.capacity": "256 MiB"}))
        log = stack.enter_context((folder / "workers.log").open("wb"))
        started = [
            stack.enter_context(WorkerProcess(WorkerSettings(role, model, daemon.socket_path, {"load": "always"}), log))
            for role in ("prefill", "decode")
        ]
        for worker in started:
            worker.ready()
        yield started


def generated(model: Path, prompt: list[int]) -> list[int]:
    """By transformers' own generate, in a process that knows nothing of Mooncask."""
    command = [sys.executable, "-c", GENERATE, str(model), str(ANSWER)]
    done = subprocess.run(command, input=msgspec.json.encode(prompt), stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=list[int])


def question(chat: Chat, characters: int) -> list[int]:
    """A part of the demo's document and a question about it."""
    return chat.prompt([{"role": "user", "content": document()[:characters] + "\n\nWhat is this text about?"}])


def test_tokens_through_the_store_are_those_of_transformers_generate(
    model: Path, chat: Chat, workers: list[WorkerProcess]
) -> None:
    prefill, decode = workers
    request = Request("q", question(chat, 2000), max_tokens=ANSWER, stop_tokens=[chat.end_of_turn])
    prefill.prefill(request)
    answer = decode.decode(request)
    assert answer.loaded.total == (len(request.tokens) - 1) // 16 * 16
    assert answer.tokens == generated(model, request.tokens)


def test_a_conversations_next_prompt_begins_with_the_very_tokens_that_were_there(
    chat: Chat, workers: list[WorkerProcess]
) -> None:
    request = Request("q", question(chat, 600), max_tokens=40, stop_tokens=[chat.end_of_turn])
    answer = workers[1].decode(request)
    turn = chat.next_turn(request.tokens, answer.tokens, "Thank you.")
    there = request.tokens + [token for token in answer.tokens if token != chat.end_of_turn]
    assert turn[: len(there)] == there
    assert chat.text(turn[len(there) :]).strip() == "user\nThank you.\nassistant"
    assert workers[1].decode(Request("q2", turn)).loaded.total >= len(there) // 16 * 16 - 16
