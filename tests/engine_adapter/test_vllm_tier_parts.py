"""The queue, names and settings of the secondary tier for vLLM, with a real daemon and no vLLM."""

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from daemon_process import DaemonProcess

from mooncask.engine_adapter.block_store import BlockStore, StoreAddress
from mooncask.engine_adapter.spans import address_of
from mooncask.engine_adapter.vllm_tier.identity import family_of, key_of, warn_of_seed
from mooncask.engine_adapter.vllm_tier.settings import TierSettings
from mooncask.engine_adapter.vllm_tier.transfers import Rows, Transfers
from mooncask.errors import ConfigError

ROW, STEP, NUMBER = 3000, 4096, 8
KEYS = [i.to_bytes(16, "big") for i in range(1, 5)]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess.start(tmp_path_factory.mktemp("tier")) as daemon:
        yield daemon


@pytest.fixture
def store(daemon: DaemonProcess, request: pytest.FixtureRequest) -> Iterator[BlockStore]:
    store = BlockStore(StoreAddress(daemon.socket_path), "tests", {"model": request.node.name})
    yield store
    store.close()


@pytest.fixture
def memory() -> np.ndarray:
    return np.frombuffer(os.urandom(STEP * NUMBER), np.uint8).copy().reshape(NUMBER, STEP)


@pytest.fixture
def transfers(memory: np.ndarray) -> Iterator[Transfers]:
    transfers = Transfers(Rows(address_of(memory.reshape(-1)), STEP, ROW), 2, 3, 2.0)
    yield transfers
    transfers.close()


def test_rows_are_stored_and_loaded_into_other_rows(
    store: BlockStore, memory: np.ndarray, transfers: Transfers
) -> None:
    transfers.save(store, 1, KEYS[:2], [0, 3])
    transfers.drain()
    (saved,) = transfers.collect()
    assert (saved.job, saved.is_load, saved.moved) == (1, False, [True, True])
    before = memory.copy()
    transfers.load(store, 2, [KEYS[1], KEYS[2], KEYS[0]], [5, 6, 7])
    transfers.drain()
    (loaded,) = transfers.collect()
    assert (loaded.job, loaded.is_load, loaded.moved) == (2, True, [True, False, True])
    assert np.array_equal(memory[5, :ROW], before[3, :ROW]) and np.array_equal(memory[7, :ROW], before[0, :ROW])
    assert np.array_equal(memory[6], before[6]) and np.array_equal(memory[:, ROW:], before[:, ROW:])


def test_a_store_beyond_the_queue_fails_at_once_and_loads_do_not(
    store: BlockStore, daemon: DaemonProcess, transfers: Transfers
) -> None:
    assert store.prefix(KEYS) == 0
    daemon.freeze()
    try:
        for job in range(4):
            transfers.save(store, job, KEYS[:1], [0])
        assert [(done.job, done.moved) for done in transfers.collect()] == [(3, [False])]
        transfers.load(store, 4, KEYS[:1], [1])
    finally:
        daemon.thaw()
    transfers.drain()
    assert sorted(done.job for done in transfers.collect()) == [0, 1, 2, 4]


def test_what_waits_when_it_is_closed_fails_and_is_collected(store: BlockStore, memory: np.ndarray) -> None:
    transfers = Transfers(Rows(address_of(memory.reshape(-1)), STEP, ROW), 1, 100, 2.0)
    for job in range(50):
        transfers.save(store, job, KEYS, [0, 1, 2, 3])
    transfers.close()
    assert sorted(done.job for done in transfers.collect()) == list(range(50))


def config(**other: Any) -> SimpleNamespace:
    one = {
        "model": SimpleNamespace(name="org/model", dtype="float16"),
        "cache": SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1),
        "groups": [SimpleNamespace(tokens_per_block=16, layer_names=("a", "b"))],
        "parallel": SimpleNamespace(is_parallelism_agnostic=False, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1),
        "kv_cache_layout": "NHD",
        "canonical_layout": False,
        "replicated_layout": False,
    }
    return SimpleNamespace(**{**one, **other})


def test_engines_share_chunks_only_when_all_that_changes_the_bytes_is_equal() -> None:
    base = family_of(config(), 100, "0.32.0", "seed", {})
    assert base == family_of(config(), 100, "0.32.9", "seed", {})
    parallel = SimpleNamespace(is_parallelism_agnostic=False, tp_size=2, pp_size=1, pcp_size=1, dcp_size=1)
    others = [
        family_of(config(), 200, "0.32.0", "seed", {}),
        family_of(config(), 100, "0.33.0", "seed", {}),
        family_of(config(), 100, "0.32.0", "another", {}),
        family_of(config(), 100, "0.32.0", "seed", {"attention": "x"}),
        family_of(config(kv_cache_layout="HND"), 100, "0.32.0", "seed", {}),
        family_of(config(parallel=parallel), 100, "0.32.0", "seed", {}),
        family_of(config(groups=[SimpleNamespace(tokens_per_block=16, layer_names=("a",))]), 100, "0.32.0", "seed", {}),
    ]
    assert base not in others and len({tuple(sorted(other.items())) for other in others}) == len(others)


def test_the_group_is_part_of_a_chunks_key() -> None:
    assert key_of(b"h" * 32 + bytes(4)) != key_of(b"h" * 32 + bytes(3) + b"\1")


def test_a_random_seed_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_seed(algorithm_is_safe=True, seed_is_set=False)
    warn_of_seed(algorithm_is_safe=False, seed_is_set=True)
    assert not caplog.records
    warn_of_seed(algorithm_is_safe=False, seed_is_set=False)
    assert "PYTHONHASHSEED=0" in caplog.text


def test_settings_are_refused_by_name() -> None:
    assert TierSettings.read({"socket": "/s", "deadline_ms": 100}).deadline_seconds == 0.1
    for wrong in ({"sockt": "/s"}, {"threads": 0}, {"mode": "fast"}, {"lookup_deadline_ms": "x"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            TierSettings.read(wrong)
