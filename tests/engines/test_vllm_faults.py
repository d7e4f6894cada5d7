"""vLLM with the connector where it hurts: chunks, aborts, preemptions, wrong bytes on disk, other block sizes and dtypes.

The long form. A tight engine (few blocks, small chunks) is compared with one that has no connector at all.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from daemon_process import DaemonProcess
from prompts import prompt
from vllm_process import BLOCK_TOKENS, VllmProcess

from mooncask.client.local import LocalClient

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(900)]

TIGHT = {"num_gpu_blocks_override": 30, "max_model_len": 512, "max_num_batched_tokens": 128}
ALWAYS = {"load": "always"}


@dataclass
class World:
    tight: VllmProcess
    plain: VllmProcess
    daemon: DaemonProcess

    def expected(self, *prompts: list[int], max_tokens: int = 8) -> list[list[int]]:
        """What vLLM says without a connector, asked one by one."""
        return [self.plain.generate([one], max_tokens=max_tokens)[0]["tokens"] for one in prompts]

    def leased_bytes(self) -> int:
        with LocalClient.connect(self.daemon.socket_path) as client:
            return sum(tier.leased_bytes + tier.reserved_bytes for tier in client.status().tiers)


@pytest.fixture(scope="module")
def world(model: Path, daemon: DaemonProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("vllm")
    with ExitStack() as stack:
        tight = VllmProcess.begin(model, folder, socket=daemon.socket_path, extra=ALWAYS, engine=TIGHT, name="tight")
        stack.enter_context(tight)
        plain = stack.enter_context(VllmProcess.begin(model, folder, name="plain"))
        tight.ready()
        plain.ready()
        yield World(tight, plain, daemon)


def test_a_prompt_that_is_prefilled_in_chunks_is_saved_and_loaded_like_any(world: World) -> None:
    text = prompt(1, 430)
    expected = world.expected(text)
    before = world.tight.counters()
    assert [answer["tokens"] for answer in world.tight.generate([text])] == expected
    world.tight.ask("reset")
    assert [answer["tokens"] for answer in world.tight.generate([text])] == expected
    after = world.tight.counters()
    assert after["saved_blocks"] - before.get("saved_blocks", 0) == 430 // BLOCK_TOKENS
    assert after["loaded_blocks"] - before.get("loaded_blocks", 0) == 430 // BLOCK_TOKENS


def test_the_next_turn_of_a_conversation_loads_what_was_generated(world: World) -> None:
    text = prompt(2, 100)
    (first,) = world.tight.generate([text], max_tokens=60)
    world.tight.ask("reset")
    before = world.tight.counters()["loaded_blocks"]
    turn = text + first["tokens"] + prompt(3, 20)
    assert [answer["tokens"] for answer in world.tight.generate([turn])] == world.expected(turn)
    assert world.tight.counters()["loaded_blocks"] - before == 159 // BLOCK_TOKENS


def test_preemptions_under_pressure_change_no_token(world: World) -> None:
    prompts = [prompt(number, 220) for number in range(10, 14)]
    expected = world.expected(*prompts, max_tokens=120)
    before = world.tight.ask("preemptions")
    answers = world.tight.generate(prompts, max_tokens=120)
    assert [answer["tokens"] for answer in answers] == expected
    assert world.tight.ask("preemptions") > before
    world.tight.ask("reset")
    again = world.tight.generate(prompts, max_tokens=120)
    assert [answer["tokens"] for answer in again] == expected
    counted = world.tight.counters()
    assert counted["used_blocks"] == 0 and counted["open_requests"] == 0 and counted["faults"] == {}


@pytest.mark.parametrize("status", ["WAITING_FOR_REMOTE_KVS", "RUNNING"])
def test_an_abort_frees_blocks_and_leases_and_leaves_the_others_alone(world: World, status: str) -> None:
    first, second = prompt(20, 300), prompt(21, 200)
    world.tight.generate([first, second])
    world.tight.ask("reset")
    requests = [{"prompt": first, "max_tokens": 40}, {"prompt": second, "max_tokens": 40}]
    ran = world.tight.ask("run", requests=requests, until=status, abort=[0])
    assert [answer["tokens"] for answer in ran["answers"]] == world.expected(second, max_tokens=40)
    counted = world.tight.counters()
    assert counted["used_blocks"] == 0 and counted["open_requests"] == 0
    assert world.leased_bytes() == 0


def test_a_daemon_that_dies_while_an_answer_is_being_generated_is_not_missed(
    model: Path, world: World, tmp_path: Path
) -> None:
    text = prompt(30, 200)
    expected = world.expected(text, max_tokens=60)
    with (
        DaemonProcess.start(tmp_path) as daemon,
        VllmProcess.start(model, tmp_path, socket=daemon.socket_path, extra=ALWAYS) as engine,
    ):
        engine.generate([text])
        engine.ask("reset")
        requests = [{"prompt": text, "max_tokens": 60}]
        ran = engine.ask("run", requests=requests, until="RUNNING", kill=daemon.pid)
        assert [answer["tokens"] for answer in ran["answers"]] == expected
        assert engine.counters()["loaded_blocks"] == 200 // BLOCK_TOKENS
        engine.ask("reset")
        assert [answer["tokens"] for answer in engine.generate([text], max_tokens=60)] == expected


def test_wrong_bytes_on_disk_are_computed_again_and_never_used(model: Path, world: World, tmp_path: Path) -> None:
    text = prompt(40, 330)
    (expected,) = world.expected(text)
    with (
        DaemonProcess.start(tmp_path) as daemon,
        VllmProcess.start(model, tmp_path, socket=daemon.socket_path, extra=ALWAYS) as engine,
    ):
        assert engine.generate([text])[0]["tokens"] == expected
        assert engine.counters()["saved_blocks"] == 330 // BLOCK_TOKENS
        daemon.stop()  # flushes what is not on disk yet
        assert spoil(tmp_path / "nvme", step=2 << 20) > 0
        daemon.run()
        with LocalClient.connect(daemon.socket_path) as client:
            for _ in range(30):  # an engine does not ask a daemon at once that was away
                engine.ask("reset")
                assert engine.generate([text])[0]["tokens"] == expected
                if client.status().counters.get("quarantined", 0):
                    break
            assert client.status().counters["quarantined"] > 0
        assert engine.counters().get("loaded_blocks", 0) < 330 // BLOCK_TOKENS


def spoil(folder: Path, step: int) -> int:
    """Flips a byte in every so many of every segment's payload; how many."""
    flipped = 0
    for path in folder.rglob("*"):
        if not path.is_file() or path.stat().st_size < 4 << 20:
            continue
        with path.open("r+b") as file:
            for offset in range(step // 2, path.stat().st_size, step):
                file.seek(offset)
                byte = file.read(1)
                if byte and byte != b"\0":
                    file.seek(offset)
                    file.write(bytes([byte[0] ^ 0x40]))
                    flipped += 1
    return flipped


def test_engines_of_another_block_size_or_dtype_find_nothing(
    model: Path, world: World, daemon: DaemonProcess, tmp_path: Path
) -> None:
    text = prompt(50, 300)
    world.tight.generate([text])
    with ExitStack() as stack:
        others = [
            stack.enter_context(
                VllmProcess.begin(
                    model, tmp_path, socket=daemon.socket_path, extra=ALWAYS, engine=engine, name=f"other-{number}"
                )
            )
            for number, engine in enumerate(({"block_size": 64}, {"dtype": "bfloat16"}))
        ]
        for other in others:
            other.ready()
            (answer,) = other.generate([text])
            counted = other.counters()
            assert answer["cached"] == 0 and counted.get("loaded_blocks", 0) == 0 and counted["saved_blocks"] > 0
        names = {engine.ask("namespace")["name"] for engine in (world.tight, *others)}
        assert len(names) == 3
