"""Gemma 3 270M in vLLM on CPU, in six KV cache groups: what one process stored another loads, and both say the same.

15 of its 18 layers see 512 tokens. The long form: test_vllm_hybrid.py has a tiny model of that kind. What a prompt's tokens
are without a store, the first engine says under a salt that nobody else has.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from daemon_process import DaemonProcess
from engines_environment import vllm_python
from gemma3_model import gemma3_folder
from prompts import prompt
from tiny_model import prompt_of, write_tiny_gemma3
from vllm_process import BLOCK_TOKENS, VllmProcess

pytestmark = [
    pytest.mark.engines,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        vllm_python() is None, reason='vLLM is not in build/engines/vllm; "make engines" puts it there (3.5 GB)'
    ),
]

WINDOW = 512
BLOCK_BYTES = 18 * 2 * 256 * 4 * BLOCK_TOKENS
ALWAYS = {"load": "always"}
salts = count()


def without_store(engine: VllmProcess, text: list[int]) -> list[int]:
    return tokens(engine, text, salt=f"fresh {next(salts)}")


def tokens(engine: VllmProcess, text: list[int], **settings: object) -> list[int]:
    found: list[int] = engine.generate([text], **settings)[0]["tokens"]
    return found


@pytest.mark.skipif(
    not gemma3_folder().is_dir(), reason='Gemma 3 is not there: "python tests/support/gemma3_model.py" makes it'
)
def test_gemma_3_says_the_same_with_kv_that_another_process_stored(daemon: DaemonProcess, tmp_path: Path) -> None:
    """Prompts shorter and longer than the window, prefilled in chunks, and one that leaves another inside its last window."""
    shape = {"max_model_len": 2048, "max_num_batched_tokens": 512}
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(
                VllmProcess.begin(
                    gemma3_folder(), tmp_path, socket=daemon.socket_path, extra=ALWAYS, engine=shape, name=name
                )
            )
            for name in ("one", "two")
        )
        one.ready()
        two.ready()
        long = prompt(1, 1100)
        texts = [prompt(2, 300), prompt(3, WINDOW), prompt(4, WINDOW + BLOCK_TOKENS), long]
        for text in texts:
            expected = without_store(one, text)
            assert tokens(one, text) == expected
            before = two.counters().get("loaded_bytes", 0)
            assert tokens(two, text) == expected
            blocks = (len(text) - 1) // BLOCK_TOKENS
            assert two.counters()["loaded_bytes"] - before == blocks * BLOCK_BYTES
        other = long[:900] + prompt(5, 70)
        assert tokens(two, other) == without_store(one, other)
        assert two.counters()["faults"] == {} and two.counters()["load_failed_blocks"] == 0


@pytest.fixture
def tight(daemon: DaemonProcess, tmp_path: Path) -> Iterator[VllmProcess]:
    """A tiny hybrid with few blocks for its four groups, and small chunks."""
    gemma = write_tiny_gemma3(tmp_path / "gemma3", window=64, head_dim=32, initializer_range=0.05)
    engine = {
        "skip_tokenizer_init": True,
        "max_model_len": 512,
        "max_num_batched_tokens": 64,
        "num_gpu_blocks_override": 56,
    }
    with VllmProcess.start(gemma, tmp_path, socket=daemon.socket_path, extra=ALWAYS, engine=engine) as started:
        yield started


def test_preemptions_and_aborts_under_pressure_change_no_token_of_a_hybrid_model(tight: VllmProcess) -> None:
    texts = [prompt_of(100 + number, seed=10 + number) for number in range(4)]
    expected = [tokens(tight, text, salt=f"fresh {next(salts)}", max_tokens=300) for text in texts]
    tight.ask("reset")
    before = tight.ask("preemptions")
    answers = tight.generate(texts, max_tokens=300)
    assert [answer["tokens"] for answer in answers] == expected
    assert tight.ask("preemptions") > before
    tight.ask("reset")
    assert [answer["tokens"] for answer in tight.generate(texts, max_tokens=300)] == expected
    for status in ("WAITING_FOR_REMOTE_KVS", "RUNNING"):
        tight.ask("reset")
        requests = [{"prompt": text, "max_tokens": 40} for text in texts]
        ran = tight.ask("run", requests=requests, until=status, abort=[0, 2])
        assert [answer["tokens"] for answer in ran["answers"]] == [expected[1][:40], expected[3][:40]]
        counted = tight.counters()
        assert counted["used_blocks"] == 0 and counted["open_requests"] == 0 and counted["faults"] == {}
