"""SGLang's own storage factory, host pools and page functions with Mooncask behind them; no GPU and no model.

What it cannot see: SGLang's scheduler and its copies between GPU and host pool, which need CUDA.
"""

import pytest
from backends_environment import engine_path

if engine_path("sglang") is None:
    pytest.skip("SGLang is not here: make engines gets it", allow_module_level=True)
pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asked_process import AskedProcess
from daemon_process import DaemonProcess

from mooncask.client.local import LocalClient

pytestmark = [pytest.mark.engines, pytest.mark.timeout(240)]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess.start(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AskedProcess]:
    log = tmp_path_factory.mktemp("sglang") / "log"
    with AskedProcess.start("sglang_child.py", str(engine_path("sglang")), log) as child:
        yield child


class Rank:
    """A rank of a model of its own, unless `model` says which."""

    def __init__(self, child: AskedProcess, socket: str, model: str = "", **settings: Any) -> None:
        self.child, self.name = child, f"rank {next(_numbers)}"
        config = {"model_name": model or self.name, **settings.pop("config", {})}
        child.ask("start", rank=self.name, socket=socket, config=config, **settings)

    def ask(self, command: str, **arguments: Any) -> Any:
        return self.child.ask(command, rank=self.name, **arguments)


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct", "page_head"])
@pytest.mark.parametrize("zero_copy", [True, False], ids=["v1", "tensors"])
def test_another_rank_process_prefetches_what_was_backed_up(
    daemon: DaemonProcess, sglang: AskedProcess, layout: str, zero_copy: bool
) -> None:
    model = f"{layout} {zero_copy}"
    writer = Rank(sglang, daemon.socket_path, model, layout=layout, zero_copy=zero_copy)
    reader = Rank(sglang, daemon.socket_path, model, layout=layout, zero_copy=zero_copy)
    written = writer.ask("fill", slots=[4, 1, 7], seed=1)
    assert reader.ask("hits", letters="abc") == 0
    assert writer.ask("backup", letters="abc", slots=[4, 1, 7])
    assert reader.ask("hits", letters="abcd") == 3
    assert reader.ask("prefetch", letters="abc", slots=[0, 9, 3]) == 3
    assert reader.ask("digests", slots=[0, 9, 3]) == written
    assert reader.ask("counts")["loaded"] == 3


def test_a_prefetch_ends_at_the_first_page_that_is_missing(daemon: DaemonProcess, sglang: AskedProcess) -> None:
    rank = Rank(sglang, daemon.socket_path)
    rank.ask("fill", slots=[0, 1], seed=2)
    rank.ask("backup", letters="ab", slots=[0, 1])
    assert rank.ask("prefetch", letters="abcd", slots=[2, 3, 4, 5]) == 2
    assert rank.ask("hits", letters="xb") == 0, "a page that follows on another one has another name"


def test_single_pages_are_got_set_and_found(daemon: DaemonProcess, sglang: AskedProcess) -> None:
    rank = Rank(sglang, daemon.socket_path, zero_copy=False)
    rank.ask("fill", slots=[0], seed=3)
    assert rank.ask("one", letter="z") == {"before": True, "stored": True, "there": True, "same": True}


def test_prefix_keys_become_the_parents_of_blocks(daemon: DaemonProcess, sglang: AskedProcess) -> None:
    rank = Rank(sglang, daemon.socket_path, "a chain")
    rank.ask("fill", slots=[0, 1, 2], seed=4)
    rank.ask("backup", letters="abc", slots=[0], skip=2)
    rank.ask("backup", letters="ab", slots=[0, 1])
    with LocalClient.connect(daemon.socket_path) as client:
        family, shard = rank.ask("identity")
        blocks = client.list_blocks(client.open_namespace(family=family, shard=shard)).blocks
    by_depth = sorted(blocks, key=lambda block: block.depth)
    assert [block.depth for block in by_depth] == [0, 1, 2]
    assert [block.parent for block in by_depth] == [b"", by_depth[0].key, by_depth[1].key]


@pytest.mark.parametrize(
    "other",
    [
        {"model": "another model"},
        {"dtype": "bfloat16"},
        {"layout": "page_head"},
        {"zero_copy": False},
        {"config": {"tp_rank": 1, "tp_size": 2}},
        {"config": {"pp_rank": 1, "pp_size": 2}},
        {"config": {"attn_cp_rank": 1, "attn_cp_size": 2}},
        {"extra": {"family": {"revision": "2"}}},
    ],
    ids=lambda other: "-".join(map(str, other)),
)
def test_ranks_that_differ_in_what_changes_the_bytes_never_share(
    daemon: DaemonProcess, sglang: AskedProcess, other: dict[str, Any]
) -> None:
    writer = Rank(sglang, daemon.socket_path, "one")
    writer.ask("fill", slots=[0], seed=5)
    assert writer.ask("backup", letters="a", slots=[0])
    assert Rank(sglang, daemon.socket_path, "one").ask("hits", letters="a") == 1
    assert Rank(sglang, daemon.socket_path, **{"model": "one", **other}).ask("hits", letters="a") == 0


def test_of_ranks_with_equal_kv_one_writes_and_all_read(daemon: DaemonProcess, sglang: AskedProcess) -> None:
    shape = {"is_mla_model": True, "tp_size": 2}
    first = Rank(sglang, daemon.socket_path, "mla", config={**shape, "tp_rank": 0})
    second = Rank(sglang, daemon.socket_path, "mla", config={**shape, "tp_rank": 1})
    second.ask("fill", slots=[0], seed=6)
    assert second.ask("backup", letters="a", slots=[0]), "what another rank stores is no failure"
    assert second.ask("hits", letters="a") == 0
    written = first.ask("fill", slots=[0], seed=7)
    first.ask("backup", letters="a", slots=[0])
    assert second.ask("prefetch", letters="a", slots=[1]) == 1
    assert second.ask("digests", slots=[1]) == written


def test_pages_of_two_pools_are_stored_and_found_together(daemon: DaemonProcess, sglang: AskedProcess) -> None:
    writer, reader = (Rank(sglang, daemon.socket_path, "hybrid") for _ in range(2))
    kv = writer.ask("fill", slots=[0, 1, 2], seed=8)
    states = writer.ask("fill", slots=[0, 1], seed=9, pool="states")
    stored = writer.ask("v2", action="set", letters="abc", kv=[0, 1, 2], states=[0, 1], kept="ac")
    assert stored == {"kv": [True] * 3, "mamba": [True] * 2}
    assert reader.ask("hits_v2", letters="abc") == [1, {"kv": 3, "mamba": 1}, [1]]
    assert reader.ask("hits_v2", letters="abc", trailing=1) == [3, {"kv": 3, "mamba": 3}, [1, 3]]
    got = reader.ask("v2", action="get", letters="abc", kv=[3, 4, 5], states=[6, 7], kept="ac")
    assert got == {"kv": [True] * 3, "mamba": [True] * 2}
    assert reader.ask("digests", slots=[3, 4, 5]) == kv
    assert reader.ask("digests", slots=[6, 7], pool="states") == states


def test_a_backend_without_a_daemon_misses_at_once_and_serves_when_there_is_one(
    tmp_path: Path, sglang: AskedProcess
) -> None:
    with DaemonProcess.start(tmp_path) as daemon:
        rank = Rank(sglang, daemon.socket_path, extra={"deadline_ms": 500})
        rank.ask("fill", slots=[0], seed=10)
        assert rank.ask("backup", letters="a", slots=[0])
        daemon.kill()
        began = time.monotonic()
        assert rank.ask("hits", letters="a") == 0
        assert rank.ask("prefetch", letters="a", slots=[1]) == 0
        assert not rank.ask("backup", letters="b", slots=[0])
        assert time.monotonic() - began < 3.0
        counts = rank.ask("counts")
        assert counts["DaemonUnavailable"] >= 1 and counts["not_asked"] >= 1
        daemon.run()
        end = time.monotonic() + 20
        while not rank.ask("backup", letters="c", slots=[0]):
            assert time.monotonic() < end, "the backend did not come back"
        assert rank.ask("prefetch", letters="c", slots=[1]) == 1


def test_a_daemon_that_answers_nothing_costs_no_more_than_the_deadline(tmp_path: Path, sglang: AskedProcess) -> None:
    with DaemonProcess.start(tmp_path) as daemon:
        rank = Rank(sglang, daemon.socket_path, extra={"deadline_ms": 300})
        rank.ask("fill", slots=[0], seed=11)
        assert rank.ask("backup", letters="a", slots=[0])
        daemon.freeze()
        try:
            began = time.monotonic()
            assert rank.ask("hits", letters="a") == 0
            assert rank.ask("prefetch", letters="a", slots=[1]) == 0
            assert time.monotonic() - began < 4.0
            assert rank.ask("counts")["DeadlineExceeded"] == 2
        finally:
            daemon.thaw()


def test_sglangs_failure_injector_wraps_it_and_nothing_wrong_is_read(
    daemon: DaemonProcess, sglang: AskedProcess
) -> None:
    rank = Rank(sglang, daemon.socket_path, failures=0.5)
    assert rank.ask("kind") == "HiCacheStorageFailureInjector"
    written = {}
    for letter in "abcdefgh":
        (written[letter],) = rank.ask("fill", slots=[0], seed=ord(letter))
        while not rank.ask("backup", letters=letter, slots=[0]):
            pass
    loaded = 0
    for letter in "abcdefgh" * 4:
        if rank.ask("prefetch", letters=letter, slots=[5]):
            loaded += 1
            assert rank.ask("digests", slots=[5]) == [written[letter]]
    assert 0 < loaded < 32


def test_metrics_count_pages_a_call_and_clear_deletes_the_ranks_blocks(
    daemon: DaemonProcess, sglang: AskedProcess
) -> None:
    rank = Rank(sglang, daemon.socket_path, config={"enable_storage_metrics": True})
    rank.ask("fill", slots=[0, 1], seed=12)
    rank.ask("backup", letters="ab", slots=[0, 1])
    rank.ask("prefetch", letters="ab", slots=[2, 3])
    assert rank.ask("metrics") == [[2], [2]]
    assert rank.ask("metrics") == [[], []]
    assert rank.ask("clear")
    assert rank.ask("hits", letters="ab") == 0


def test_wrong_settings_are_refused_by_name(daemon: DaemonProcess, sglang: AskedProcess) -> None:
    with pytest.raises(RuntimeError, match="deadline_ms"):
        Rank(sglang, daemon.socket_path, extra={"deadline_ms": "soon"})
