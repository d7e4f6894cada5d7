"""vLLM on CPU with a model of sliding and full layers, in several KV cache groups, and loads within a step, layer by layer.

Two engines have a tiny random Gemma 3 and one daemon. `hybrid` has its layers in four groups, three of which keep a window
only. `whole` keeps all KV, in one group, and loads within the step. What KV is does not depend on that, so they share.

What a prompt's tokens are without a store, an engine says when it is asked under a salt that nobody has used. The window is
one token longer than two blocks: a prompt that was loaded to its end would lack a token then.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from daemon_process import DaemonProcess
from engines_environment import vllm_python
from tiny_model import prompt_of, write_tiny_gemma3
from vllm_process import BLOCK_TOKENS, VllmProcess

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        vllm_python() is None, reason='vLLM is not in build/engines/vllm; "make engines" puts it there (3.5 GB)'
    ),
]

WINDOW = 2 * BLOCK_TOKENS + 1
LENGTHS = (31, 64, 65, 96, 97, 128, 150, 400)
"""Shorter and longer than the window, at its end, and at a block's."""
SHAPE = {"skip_tokenizer_init": True, "max_model_len": 1024, "max_num_batched_tokens": 128}
CONNECTOR = {"load": "always", "deadline_ms": 10_000}
salts = count()


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Narrowly initialised: its tokens depend on what it attends to, near and far."""
    return write_tiny_gemma3(
        tmp_path_factory.mktemp("model") / "gemma3", window=WINDOW, head_dim=32, initializer_range=0.05
    )


@pytest.fixture(scope="module")
def engines(
    gemma: Path, daemon: DaemonProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[VllmProcess, VllmProcess]]:
    folder = tmp_path_factory.mktemp("vllm")
    settings = (
        ("hybrid", CONNECTOR, SHAPE, "1"),
        ("whole", {**CONNECTOR, "load_mode": "layerwise"}, {**SHAPE, "disable_hybrid_kv_cache_manager": True}, "2"),
    )
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                VllmProcess.begin(
                    gemma,
                    folder,
                    socket=daemon.socket_path,
                    extra=extra,
                    engine=engine,
                    variables={"PYTHONHASHSEED": seed},
                    name=name,
                )
            )
            for name, extra, engine, seed in settings
        ]
        for engine in started:
            engine.ready()
        yield started[0], started[1]


def without_store(engine: VllmProcess, prompts: Sequence[list[int]]) -> list[list[int]]:
    return tokens(engine, prompts, salt=f"fresh {next(salts)}")


def tokens(engine: VllmProcess, prompts: Sequence[list[int]], **settings: object) -> list[list[int]]:
    return [answer["tokens"] for answer in engine.generate(prompts, max_tokens=12, **settings)]


def loaded(engine: VllmProcess) -> int:
    found: int = engine.counters().get("loaded_blocks", 0)
    return found


def blocks(prompts: Sequence[list[int]]) -> int:
    """That are loaded: something is left to compute of each."""
    return sum((len(one) - 1) // BLOCK_TOKENS for one in prompts)


def test_prompts_of_every_length_beside_the_window_are_stored_and_loaded_by_engines_of_either_kind(
    engines: tuple[VllmProcess, VllmProcess],
) -> None:
    hybrid, whole = engines
    prompts = [prompt_of(length, seed=length) for length in LENGTHS]
    expected = without_store(hybrid, prompts)
    assert len({tuple(one) for one in expected}) == len(expected), "tokens that say nothing"
    assert tokens(hybrid, prompts) == expected
    hybrid.ask("reset")
    assert tokens(hybrid, prompts) == expected
    assert loaded(hybrid) == blocks(prompts)
    assert tokens(whole, prompts) == expected
    assert loaded(whole) == blocks(prompts)
    counted = whole.counters()
    assert counted["layerwise_loads"] == sum(length > BLOCK_TOKENS for length in LENGTHS)
    # The other way round, and a prompt that goes another way inside the last window.
    other = prompt_of(300, seed=1)
    begins_alike = [other[:230] + prompt_of(60, seed=2)]
    assert tokens(whole, [other]) == without_store(hybrid, [other])
    before = loaded(hybrid)
    assert tokens(hybrid, begins_alike) == without_store(whole, begins_alike)
    assert loaded(hybrid) - before == 230 // BLOCK_TOKENS
    for engine in engines:
        counted = engine.counters()
        assert counted["load_failed_blocks"] == 0 and counted["faults"] == {} and counted["used_blocks"] == 0
    assert hybrid.ask("namespace") == whole.ask("namespace")


def test_what_windows_leave_behind_while_the_daemon_stands_still_is_saved_as_it_was(
    engines: tuple[VllmProcess, VllmProcess], daemon: DaemonProcess
) -> None:
    hybrid, whole = engines
    text = prompt_of(800, seed=3)
    (expected,) = without_store(whole, [text])
    before = hybrid.counters()
    requests = [{"prompt": text, "max_tokens": 12}]
    ran = hybrid.ask("run", requests=requests, until="RUNNING", freeze=daemon.pid)
    assert ran["answers"][0]["tokens"] == expected
    after = hybrid.counters()
    assert after["captured_blocks"] > before.get("captured_blocks", 0) + 10
    assert after["saved_blocks"] - before["saved_blocks"] == (800 + 11) // BLOCK_TOKENS
    was = loaded(whole)
    assert tokens(whole, [text]) == [expected]
    assert loaded(whole) - was == 800 // BLOCK_TOKENS - 1  # 800 is 25 blocks


def test_a_daemon_that_dies_between_match_and_load_costs_time_and_no_token(
    engines: tuple[VllmProcess, VllmProcess], daemon: DaemonProcess
) -> None:
    hybrid, whole = engines
    text = prompt_of(400, seed=4)
    expected = without_store(hybrid, [text])
    tokens(hybrid, [text])
    both = [{"prompt": text, "max_tokens": 12}] * 2  # the second finds the first's blocks in vLLM's own prefix cache
    for engine in (whole, hybrid):  # blocks of a request that computes at once; the whole of one that waits
        until_loaded(engine, text, expected)
        engine.ask("reset")
        before = engine.counters()
        answers = engine.ask("generate_and_kill", requests=both, kill=daemon.pid)
        assert [answer["tokens"] for answer in answers] == 2 * expected
        after = engine.counters()
        assert after["load_failed_blocks"] > before["load_failed_blocks"]
        assert after["used_blocks"] == 0 and after["open_requests"] == 0
        # What was computed meanwhile is vLLM's own prefix cache's now, and right.
        assert tokens(engine, [text]) == expected
        daemon.restart()
    daemon.kill()  # the one that was restarted is this test's own


def until_loaded(engine: VllmProcess, text: list[int], expected: list[list[int]]) -> None:
    """An engine lets a daemon alone for some seconds that it could not reach."""
    for _ in range(60):
        before = loaded(engine)
        engine.ask("reset")
        assert tokens(engine, [text]) == expected
        if loaded(engine) - before == (len(text) - 1) // BLOCK_TOKENS:
            return
    raise AssertionError("nothing was loaded")
