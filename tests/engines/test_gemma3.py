"""Gemma 3 270M, 15 of whose 18 layers see 512 tokens: its tokens through the store are those that transformers generates."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

for needed in ("torch", "transformers"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: pip install mooncask[engine]")

from daemon_process import DaemonProcess
from gemma3_model import gemma3_folder

from mooncask.engine_adapter.transformers.messages import Request
from mooncask.engine_adapter.transformers.worker_process import WorkerProcess, WorkerSettings

pytestmark = [
    pytest.mark.engines,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not gemma3_folder().is_dir(), reason='Gemma 3 is not there: "python tests/support/gemma3_model.py" makes it'
    ),
]

WINDOW, BLOCK, ANSWER = 512, 16, 4
GENERATE = """
import json, sys, torch
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
for line in sys.stdin:
    prompt = json.loads(line)
    out = model.generate(torch.tensor([prompt]), max_new_tokens=int(sys.argv[2]), do_sample=False, eos_token_id=None)
    print("tokens", json.dumps(out[0, len(prompt):].tolist()), flush=True)
"""


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[WorkerProcess]]:
    folder = tmp_path_factory.mktemp("gemma3")
    with ExitStack() as stack:
        daemon = stack.enter_context(DaemonProcess.start(folder, {"dram.capacity": "256 MiB"}))
        log = stack.enter_context((folder / "workers.log").open("wb"))
        options = {"load": "always", "deadline-seconds": "20"}
        started = [
            stack.enter_context(WorkerProcess(WorkerSettings(role, gemma3_folder(), daemon.socket_path, options), log))
            for role in ("prefill", "decode")
        ]
        for worker in started:
            worker.ready(600)
        yield started


def prompt(length: int) -> list[int]:
    """English that says something, repeated: random ids have nearly equal logits."""
    from transformers import AutoTokenizer

    text = "The river rises in the hills, runs past three mills and a bridge of stone, and ends in a wide bay. "
    ids: list[int] = AutoTokenizer.from_pretrained(gemma3_folder(), local_files_only=True).encode(text * 60)
    return ids[:length]


def by_transformers(prompts: list[list[int]]) -> list[list[int]]:
    lines = "".join(json.dumps(one) + "\n" for one in prompts)
    command = [sys.executable, "-c", GENERATE, str(gemma3_folder()), str(ANSWER)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=600, check=True)
    return [json.loads(line.removeprefix("tokens ")) for line in done.stdout.splitlines() if line.startswith("tokens ")]


def test_prompts_shorter_and_longer_than_the_window_answer_as_transformers_does(workers: list[WorkerProcess]) -> None:
    prefill, decode = workers
    lengths = [200, WINDOW + 88]
    prompts = [prompt(length) for length in lengths]
    for tokens, expected in zip(prompts, by_transformers(prompts), strict=True):
        # A prefix of the longer prompt is there from the shorter one: prefill's hit ends inside the window.
        stored = prefill.prefill(Request("p", tokens), 600)
        answer = decode.decode(Request("d", tokens, max_tokens=ANSWER, write_back=False), 600)
        assert answer.loaded.total == (len(tokens) - 1) // BLOCK * BLOCK
        assert stored.loaded.total + stored.computed == len(tokens) // BLOCK * BLOCK
        assert answer.tokens == expected
    assert stored.loaded.total == 200 // BLOCK * BLOCK, "the second prompt went on from the first"
