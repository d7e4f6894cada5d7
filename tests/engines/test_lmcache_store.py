"""LMCache's own remote backend against Mooncask: through its S3 adapter and through the storage plugin. No GPU, no engine.

What it cannot see: LMCache's copies between GPU and its own memory, and its multi-process server, whose start needs CUDA.
"""

import pytest
from backends_environment import engine_path

if engine_path("lmcache") is None:
    pytest.skip("LMCache is not here: make engines gets it", allow_module_level=True)
pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asked_process import AskedProcess
from daemon_process import DaemonProcess
from s3_door import DOMAIN, S3Door, boto_client, open_s3

pytestmark = [pytest.mark.engines, pytest.mark.timeout(240)]

SHAPE = [2, 2, 256, 2, 64]
"""Layers, K and V, tokens, heads, head size: a chunk of 256 KiB in bfloat16."""
QUIET = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_LOG_LEVEL": "WARNING", "PYTHONHASHSEED": "0"}
BUCKET = "chunks"
HAS_HOSTS = os.geteuid() == 0 and shutil.which("unshare") is not None
WORDS = ["a", "b", "c"]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Door]:
    with open_s3(tmp_path_factory.mktemp("s3"), "http") as door:
        client = boto_client(door)
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield door


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AskedProcess]:
    folder = tmp_path_factory.mktemp("lmcache")
    (folder / "hosts").write_text(f"127.0.0.1 localhost {BUCKET}.{DOMAIN}\n")
    inside = 'mount --bind "$0" /etc/hosts && exec "$@"'
    under = ["unshare", "--mount", "sh", "-c", inside, str(folder / "hosts")] if HAS_HOSTS else []
    path = str(engine_path("lmcache"))
    with AskedProcess.start("lmcache_child.py", path, folder / "log", QUIET, under) as child:
        yield child


def s3(door: S3Door) -> dict[str, Any]:
    """As docs/ENGINES.md has it: the bucket by its host, no TLS."""
    return {
        "remote_url": f"s3://{BUCKET}.{DOMAIN}:{door.daemon.http_address.rpartition(':')[2]}",
        "extra_config": {
            "s3_region": "us-east-1",
            "disable_tls": True,
            "s3_prefer_http2": False,
            "s3_num_io_threads": 2,
            "save_chunk_meta": False,
            "aws_access_key_id": door.access_key,
            "aws_secret_access_key": door.secret,
        },
    }


def plugin(socket: str, **extra: Any) -> dict[str, Any]:
    own = {"module_path": "mooncask.engine_adapter.lmcache", "class_name": "MooncaskConnectorAdapter", "socket": socket}
    settings = {f"remote_storage_plugin.mooncask.{name}": value for name, value in own.items()}
    return {"remote_storage_plugins": ["mooncask"], "extra_config": {**settings, **extra}, "plugin": "mooncask"}


class Worker:
    """One LMCache worker, of a model of its own unless `model` says which."""

    def __init__(self, child: AskedProcess, settings: dict[str, Any], model: str = "", **more: Any) -> None:
        self.child, self.name = child, f"worker {next(_numbers)}"
        arguments = {"shape": SHAPE, **more}
        assert child.ask("start", name=self.name, model=model or self.name, settings=settings, **arguments), (
            child.said()
        )

    def ask(self, command: str, **arguments: Any) -> Any:
        return self.child.ask(command, name=self.name, **arguments)


@pytest.fixture(params=["s3", "plugin", "plugin without chunk meta"])
def settings(request: pytest.FixtureRequest, door: S3Door) -> dict[str, Any]:
    if request.param == "s3":
        if not HAS_HOSTS:
            pytest.skip("a host name for the bucket needs a /etc/hosts of the test's own: root, and unshare")
        return s3(door)
    extra = {} if request.param == "plugin" else {"save_chunk_meta": False}
    return plugin(door.daemon.socket_path, **extra)


def test_another_worker_finds_and_reads_what_was_put(child: AskedProcess, settings: dict[str, Any]) -> None:
    model = f"model {next(_numbers)}"
    writer, reader = (Worker(child, dict(settings), model) for _ in range(2))
    assert reader.ask("contains", words=WORDS) == [False] * 3
    written = writer.ask("put", words=WORDS, seed=1)
    assert reader.ask("contains", words=WORDS) == [True] * 3
    assert reader.ask("get", words=WORDS) == written
    assert reader.ask("prefix", words=[*WORDS, "d"]) == 3
    assert reader.ask("get_prefix", words=["b", "c", "d"]) == written[1:]


def test_chunks_of_other_ranks_and_models_are_others(child: AskedProcess, settings: dict[str, Any]) -> None:
    model = f"model {next(_numbers)}"
    Worker(child, dict(settings), model, worker=0, workers=2).ask("put", words=["a"], seed=2)
    assert Worker(child, dict(settings), model, worker=1, workers=2).ask("contains", words=["a"]) == [False]
    assert Worker(child, dict(settings), "another").ask("contains", words=["a"]) == [False]


def test_the_plugin_tells_layouts_apart_that_lmcaches_keys_do_not(child: AskedProcess, door: S3Door) -> None:
    """LMCache's key names model, ranks and dtype: with another layout of the same size its bytes would be taken."""
    settings = plugin(door.daemon.socket_path)
    Worker(child, dict(settings), "layouts").ask("put", words=["a"], seed=3)
    other = [2, 2, 256, 1, 128]
    assert Worker(child, dict(settings), "layouts", shape=other).ask("contains", words=["a"]) == [False]
    assert Worker(child, dict(settings), "layouts").ask("contains", words=["a"]) == [True]


def test_the_plugin_gives_no_chunk_after_one_that_is_missing(child: AskedProcess, door: S3Door) -> None:
    """LMCache takes the list for a prefix: a chunk more in it would be put where another one belongs."""
    worker = Worker(child, plugin(door.daemon.socket_path))
    written = worker.ask("put", words=WORDS, seed=8)
    assert worker.ask("get_prefix", words=["b", "d", "c"]) == [written[1]]


def test_the_plugin_removes_chunks_and_answers_pings(child: AskedProcess, door: S3Door) -> None:
    worker = Worker(child, plugin(door.daemon.socket_path))
    worker.ask("put", words=["a"], seed=4)
    assert worker.ask("ping") == 0
    assert worker.ask("remove", word="a")
    assert worker.ask("contains", words=["a"]) == [False]


def test_a_connector_that_was_closed_misses(child: AskedProcess, door: S3Door) -> None:
    worker = Worker(child, plugin(door.daemon.socket_path))
    worker.ask("put", words=["a"], seed=10)
    worker.ask("close")
    assert worker.ask("contains", words=["a"]) == [False]
    assert worker.ask("prefix", words=["a"]) == 0
    assert worker.ask("get", words=["a"]) == [None]
    assert worker.ask("ping") == 1
    worker.ask("put", words=["b"], seed=11)


def test_chunks_come_back_after_lmcaches_own_memory_was_full_many_times(child: AskedProcess, door: S3Door) -> None:
    """50 MB of memory and 100 chunks of 256 KiB, thrice: a chunk that nobody lets go of would end it."""
    worker = Worker(child, plugin(door.daemon.socket_path))
    words = [f"chunk {i}" for i in range(100)]
    written = [worker.ask("put", words=words[i : i + 25], seed=i) for i in range(0, 100, 25)]
    for _ in range(3):
        assert [worker.ask("get", words=words[i : i + 25]) for i in range(0, 100, 25)] == written


def test_what_lmcache_gave_up_waiting_for_holds_no_memory_and_is_never_other_bytes(
    child: AskedProcess, door: S3Door
) -> None:
    worker = Worker(child, plugin(door.daemon.socket_path))
    worker.ask("put", words=WORDS, seed=9)
    said = len(child.log.read_text())
    words = [f"chunk {i}" for i in range(100)]  # half of LMCache's memory
    for _ in range(4):
        worker.ask("cancelled", what="get", words=WORDS * 30)
        worker.ask("cancelled", what="put", words=words)
        assert False not in worker.ask("is_filled", words=words)
    assert "garbage collected" not in child.log.read_text()[said:], "LMCache took back what nobody let go of"


def test_a_daemon_that_is_gone_costs_misses_and_no_errors(tmp_path: Path, child: AskedProcess) -> None:
    with DaemonProcess.start(tmp_path) as daemon:
        worker = Worker(child, plugin(daemon.socket_path, **{"remote_storage_plugin.mooncask.deadline_ms": 500}))
        worker.ask("put", words=["a"], seed=5)
        daemon.kill()
        began = time.monotonic()
        assert worker.ask("contains", words=["a"]) == [False]
        assert worker.ask("get", words=["a"]) == [None]
        worker.ask("put", words=["b"], seed=6)
        assert worker.ask("ping") == 1
        assert time.monotonic() - began < 3.0
        daemon.run()
        end = time.monotonic() + 20
        while worker.ask("ping") != 0:
            assert time.monotonic() < end, worker.ask("counts")
        written = worker.ask("put", words=["c"], seed=7)
        assert worker.ask("get", words=["c"]) == written


def check(mode: str, settings: dict[str, Any], folder: Path) -> dict[str, str]:
    """LMCache's own checker as users start it: each operation's share of passes, by its name."""
    config = folder / "lmcache.yaml"
    config.write_text(json.dumps({"max_local_cpu_size": 0.05, "local_cpu": False, **settings}))  # JSON is YAML
    variables = {**os.environ, **QUIET, "LMCACHE_CONFIG_FILE": str(config), "PYTHONPATH": str(engine_path("lmcache"))}
    command = [sys.executable, "-m", "lmcache.v1.basic_check", "--mode", mode, "--model", f"{mode}/model"]
    done = subprocess.run(command, check=False, env=variables, capture_output=True, text=True, timeout=100)
    return dict(re.findall(r"^\| ([A-Z].*?)\s+\|.*\|\s+([\d.]+%) \|", done.stdout, re.MULTILINE)) or {"": done.stderr}


@pytest.mark.parametrize("mode", ["test_remote", "test_storage_manager"])
@pytest.mark.slow
def test_lmcaches_own_checker_passes_with_the_plugin(mode: str, door: S3Door, tmp_path: Path) -> None:
    settings = plugin(door.daemon.socket_path)
    name = settings.pop("plugin")
    if mode == "test_remote":
        settings["remote_url"] = f"plugin://{name}"
    passed = check(mode, settings, tmp_path)
    assert passed == dict.fromkeys(["EXISTS (non-exist)", "PUT", "EXISTS (exist)", "GET"], "100.0%")
