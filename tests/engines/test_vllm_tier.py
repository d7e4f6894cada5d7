"""Mooncask as a secondary tier of vLLM's own offloading, made by vLLM's factory; in the slow form inside whole engines.

vLLM's copies between GPU and host memory can't run here: the engines have another worker for those (`cpu_tiering.py`).
"""

import pytest
from engines_environment import vllm_python

if vllm_python() is None:
    pytest.skip("vLLM is not here: make engines gets it", allow_module_level=True)

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asked_process import AskedProcess
from daemon_process import DaemonProcess
from nixl_environment import nixl_packages
from prompts import prompt
from s3_door import boto_client, open_s3

from mooncask.tools.bench.vllm_process import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
TIER = {"type": "MooncaskTier", "module_path": "mooncask.engine_adapter.vllm_tier"}
pytestmark = [pytest.mark.engines, pytest.mark.timeout(400)]
_numbers = itertools.count()


def start(log: Path, path: str = "") -> AskedProcess:
    path = os.pathsep.join(filter(None, [str(ROOT / ".importroot"), path]))
    environment = {**ENVIRONMENT, "NIXL_TELEMETRY_ENABLE": "y"}  # vLLM's `obj` tier asks NIXL how long a transfer took
    return AskedProcess.start("tier_child.py", path, log, environment, interpreter=str(vllm_python()))


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AskedProcess]:
    folder = tmp_path_factory.mktemp("tier")
    for package in nixl_packages():  # alone, without the numpy beside them
        (folder / package.name).symlink_to(package)
    with start(folder / "log", path=str(folder)) as child:
        yield child


class Tier:
    def __init__(self, child: AskedProcess, socket: str, model: str = "", **settings: Any) -> None:
        self.child, self.name = child, f"tier {next(_numbers)}"
        child.ask(
            "make",
            tier=self.name,
            settings={**({"socket": socket} if socket else {}), **settings},
            model=model or self.name,
        )

    def ask(self, command: str, **arguments: Any) -> Any:
        return self.child.ask(command, tier=self.name, **arguments)

    def hits(self, words: list[str]) -> list[bool]:
        found, longest, _ = self.ask("lookup", words=words, request=f"request {next(_numbers)}")
        assert longest < 0.1, "the scheduler waited"
        return list(found)


def test_what_one_engine_stored_another_finds_and_loads(child: AskedProcess, daemon: DaemonProcess) -> None:
    writer, reader = (Tier(child, daemon.socket_path, "shared") for _ in range(2))
    for row in range(3):
        writer.ask("fill", row=row, value=10 + row)
    assert reader.hits(["a", "b"]) == [False, False]
    success, size, submitted = writer.ask("store", words=["a", "b", "c"], rows=[0, 1, 2])
    assert success and size == 3 * 8192 and submitted < 0.1
    assert reader.hits(["a", "b", "c", "d"]) == [True, True, True, False]
    assert reader.hits(["d", "c"]) == [False, True], "what follows a missing chunk is looked for too"
    assert reader.ask("load", words=["c", "a"], rows=[5, 7]) == [True, None]
    rows = reader.ask("rows")
    assert (rows[5], rows[7]) == (12, 10) and set(rows[:5]) == {0}


def test_chunks_that_left_are_told_by_name_and_missed_from_then_on(child: AskedProcess, daemon: DaemonProcess) -> None:
    tier = Tier(child, daemon.socket_path)
    tier.ask("fill", row=0, value=1)
    tier.ask("store", words=["a"], rows=[0])
    assert tier.ask("load", words=["a", "gone"], rows=[3, 4]) == [False, ["a"]]
    assert tier.ask("rows")[3:5] == [1, 0]


def test_engines_of_other_models_share_nothing(child: AskedProcess, daemon: DaemonProcess) -> None:
    tier = Tier(child, daemon.socket_path, "one")
    tier.ask("store", words=["a"], rows=[0])
    assert Tier(child, daemon.socket_path, "one").hits(["a"]) == [True]
    assert Tier(child, daemon.socket_path, "two").hits(["a"]) == [False]
    assert Tier(child, daemon.socket_path, "one", family={"attention": "x"}).hits(["a"]) == [False]


def test_a_daemon_that_is_gone_or_silent_costs_misses_within_the_deadline(tmp_path: Path, child: AskedProcess) -> None:
    with DaemonProcess.start(tmp_path) as daemon:
        tier = Tier(child, daemon.socket_path, lookup_deadline_ms=200, deadline_ms=500)
        tier.ask("store", words=["a"], rows=[0])
        daemon.freeze()
        found, longest, seconds = tier.ask("lookup", words=["a"], request="late")
        assert found == [False] and longest < 0.1 and seconds < 3.0
        assert tier.ask("load", words=["a"], rows=[1]) == [False, None]
        daemon.thaw()
        daemon.kill()
        found, longest, seconds = tier.ask("lookup", words=["a"], request="gone")
        assert found == [False] and longest < 0.1 and seconds < 3.0
        assert tier.ask("store", words=["b"], rows=[0])[0] is False
        daemon.run()
        end = time.monotonic() + 20
        while not tier.ask("store", words=["c"], rows=[0])[0]:
            assert time.monotonic() < end, tier.ask("counts")
        assert tier.hits(["c"]) == [True]


def test_a_tier_that_was_shut_down_leaves_no_view_of_vllms_memory(child: AskedProcess, daemon: DaemonProcess) -> None:
    tier = Tier(child, daemon.socket_path)
    tier.ask("store", words=["a"], rows=[0])
    tier.ask("shutdown")


def test_wrong_settings_are_refused_by_name(child: AskedProcess, daemon: DaemonProcess) -> None:
    with pytest.raises(RuntimeError, match="deadline_s"):
        Tier(child, daemon.socket_path, deadline_s=1)


def test_vllms_own_obj_tier_stores_and_finds_chunks_through_nixl_and_the_s3_door(
    tmp_path: Path, child: AskedProcess
) -> None:
    """vLLM's `obj` tier is NIXL's OBJ plugin on an S3 endpoint: Mooncask as one, with nothing of its own in vLLM."""
    if not nixl_packages():
        pytest.skip("NIXL is not here: python tests/support/nixl_environment.py gets it")
    with open_s3(tmp_path, "http") as door:
        client = boto_client(door)
        client.create_bucket(Bucket="chunks")
        store = {
            "bucket": "chunks",
            "endpoint_override": door.endpoint,
            "scheme": "http",
            "access_key": door.access_key,
            "secret_key": door.secret,
            "region": "us-east-1",
        }
        writer, reader = (
            Tier(child, "", "shared", type="obj", module_path="", store_config=store, prefix="kv") for _ in range(2)
        )
        for row in range(2):
            writer.ask("fill", row=row, value=20 + row)
        assert reader.hits(["x"]) == [False]
        assert writer.ask("store", words=["a", "b"], rows=[0, 1])[0]
        assert reader.hits(["a", "b", "c"]) == [True, True, False]
        assert reader.ask("load", words=["b", "a"], rows=[5, 6])[0]
        assert reader.ask("rows")[5:7] == [21, 20]
        names = [one["Key"] for one in client.list_objects_v2(Bucket="chunks")["Contents"]]
        client.close()
    assert len(names) == 2 and all(name.startswith("kv") and name.endswith(".bin") for name in names)


@pytest.mark.slow
def test_a_second_engine_computes_the_same_from_chunks_of_the_first(
    model: Path, daemon: DaemonProcess, tmp_path: Path
) -> None:
    asked, answers = prompt(71, 1000), []
    for number in range(2):
        with start(tmp_path / f"log{number}") as engine:
            engine.ask("engine", model=str(model), tiers=[{**TIER, "socket": daemon.socket_path}])
            answers.append(engine.ask("generate", prompt=asked))
            counts = engine.ask("tier_counts")
            assert engine.ask("stop") == []
        if number == 0:
            assert counts["stored"] >= 30 and counts.get("loaded", 0) == 0
        else:
            assert counts["loaded"] >= 30
    assert answers[0]["tokens"] == answers[1]["tokens"]
    assert answers[1]["cached"] >= 960
