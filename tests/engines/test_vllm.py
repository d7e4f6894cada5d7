"""vLLM on CPU with the connector: what one engine computed, another with another hash seed loads, and nothing wrong ever.

The short form, for CI: two engines and one daemon. float32, because bfloat16 tokens change with the chunking of prefill
alone. vLLM's `num_cached_tokens` is only a claim, so blocks really copied are counted. The rest: test_vllm_faults.py.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from daemon_process import DaemonProcess
from prompts import prompt
from vllm_process import BLOCK_TOKENS, VllmProcess

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def engines(
    model: Path, daemon: DaemonProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[VllmProcess, VllmProcess]]:
    """The second one leases, loads and saves one block at a time."""
    folder = tmp_path_factory.mktemp("vllm")
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                VllmProcess.begin(
                    model,
                    folder,
                    socket=daemon.socket_path,
                    extra={"load": "always", **extra},
                    variables={"PYTHONHASHSEED": seed},
                    name=f"engine-{seed}",
                )
            )
            for seed, extra in (("1", {}), ("2", {"lease_bytes": 1 << 20}))
        ]
        for engine in started:
            engine.ready()
        yield started[0], started[1]


def test_what_one_engine_computed_another_loads_and_both_say_the_same(
    engines: tuple[VllmProcess, VllmProcess],
) -> None:
    first, second = engines
    prompts = [prompt(1, 520), prompt(2, 256), prompt(3, 31)]
    computed = [first.generate([one])[0] for one in prompts]
    assert [answer["cached"] for answer in computed] == [0, 0, 0]
    assert first.counters()["saved_blocks"] >= 16 + 8
    loaded = second.generate(prompts)  # all at once
    assert [answer["tokens"] for answer in loaded] == [answer["tokens"] for answer in computed]
    # All of the second prompt is loaded: it is full blocks only. vLLM then computes its last token again.
    assert [answer["cached"] for answer in loaded] == [512, 256, 0]
    counted = second.counters()
    assert counted["loaded_blocks"] == 16 + 8
    assert counted["loaded_bytes"] == 24 * BLOCK_TOKENS * 46_080
    assert counted["load_failed_blocks"] == 0 and counted["faults"] == {}
    assert first.ask("namespace") == second.ask("namespace")


def test_requests_of_two_salts_never_share(engines: tuple[VllmProcess, VllmProcess]) -> None:
    first, second = engines
    text = prompt(10, 200)
    plain = first.generate([text])[0]["tokens"]
    salted = first.generate([text], salt="a")[0]
    before = second.counters()["loaded_blocks"]
    other = second.generate([text], salt="b")[0]
    assert (salted["cached"], other["cached"]) == (0, 0)
    assert second.counters()["loaded_blocks"] == before
    same = second.generate([text], salt="a")[0]
    assert second.counters()["loaded_blocks"] == before + 200 // BLOCK_TOKENS
    assert salted["tokens"] == other["tokens"] == same["tokens"] == plain


def test_a_daemon_that_dies_during_a_load_costs_time_and_no_token(
    engines: tuple[VllmProcess, VllmProcess], daemon: DaemonProcess
) -> None:
    first, second = engines
    text = prompt(20, 1000)
    computed = first.generate([text])[0]["tokens"]
    before = second.counters()
    ran = second.ask("run", requests=[{"prompt": text}], until="WAITING_FOR_REMOTE_KVS", kill=daemon.pid)
    assert ran["answers"][0]["tokens"] == computed
    after = second.counters()
    came, failed = (after[name] - before[name] for name in ("loaded_blocks", "load_failed_blocks"))
    assert came + failed == 1000 // BLOCK_TOKENS and failed > 0
    assert after["used_blocks"] == 0 and after["open_requests"] == 0
    # Without a daemon, and after its return.
    gone = prompt(21, 100)
    alone = [engine.generate([gone])[0]["tokens"] for engine in engines]
    assert alone[0] == alone[1]
    daemon.restart()
    again = prompt(22, 300)
    stored = until_saved(first, again, 300 // BLOCK_TOKENS)
    before = second.counters()
    assert second.generate([again])[0]["tokens"] == stored
    assert second.counters()["loaded_blocks"] - before["loaded_blocks"] == 300 // BLOCK_TOKENS
    daemon.kill()  # the one that was restarted is this test's own


def until_saved(engine: VllmProcess, text: list[int], blocks: int) -> list[int]:
    """An engine lets a daemon alone for some seconds that it could not reach; the prompt is computed anew until it is saved."""
    tokens: list[int] = []
    for _ in range(40):
        before = engine.counters()["saved_blocks"]
        engine.ask("reset")
        tokens = engine.generate([text])[0]["tokens"]
        if engine.counters()["saved_blocks"] - before >= blocks:
            return tokens
    raise AssertionError("nothing was saved")
