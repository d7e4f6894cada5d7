"""What LMCache's chunks are called and which families they are of: no LMCache needed."""

from types import SimpleNamespace
from typing import Any

import pytest

from mooncask.engine_adapter.lmcache.identity import family_of, hash_seed, key_of
from mooncask.engine_adapter.lmcache.settings import read_address
from mooncask.errors import ConfigError

CONFIG = SimpleNamespace(use_layerwise=False, remote_serde="naive", pre_caching_hash_algorithm="builtin")


def family(seed: str = "seed 0", config: Any = CONFIG, **other: Any) -> dict[str, str]:
    one = {"model_name": "org/model", "kv_dtype": "bfloat16", "kv_shape": (2, 2, 256, 2, 64), "chunk_size": 256}
    return family_of(config, SimpleNamespace(**{**one, "use_mla": False, **other}), "0.5.6", "vllm 0.32.0", seed)


def test_what_lmcaches_keys_leave_out_is_in_the_family() -> None:
    assert family() == family()
    for other in ({"kv_shape": (2, 2, 256, 1, 128)}, {"kv_dtype": "float16"}, {"use_mla": True}, {"model_name": "b"}):
        assert family(**other) != family()
    assert family(config=SimpleNamespace(**{**vars(CONFIG), "use_layerwise": True})) != family()
    assert family(seed="seed 1") != family()


def test_keys_are_told_by_the_whole_name() -> None:
    assert len(key_of("m@1@0@ab@bfloat16")) == 16
    assert key_of("m@1@0@ab@bfloat16") != key_of("m@1@0@ab@bfloat16@salt%x")


def test_a_fixed_seed_and_a_hash_without_one_are_shared(caplog: pytest.LogCaptureFixture) -> None:
    assert hash_seed("builtin", {"PYTHONHASHSEED": "0"}) == "seed 0"
    assert hash_seed("sha256_cbor", {}) == "no seed"
    assert not caplog.records


def test_a_random_seed_shares_with_nobody_and_says_what_to_set(caplog: pytest.LogCaptureFixture) -> None:
    for environment in ({}, {"PYTHONHASHSEED": "random"}):
        assert hash_seed("builtin", environment) != hash_seed("builtin", environment)
    assert "PYTHONHASHSEED=0" in caplog.text


def test_settings_are_those_of_the_plugins_name() -> None:
    given = {"remote_storage_plugin.mooncask.a.socket": "/a", "remote_storage_plugin.mooncask.socket": "/b"}
    assert read_address(given, "mooncask.a").socket == "/a"
    assert read_address(given, "mooncask").socket == "/b"
    assert read_address(None, "mooncask").deadline_seconds == 2.0
    with pytest.raises(ConfigError, match="deadline_ms"):
        read_address({"remote_storage_plugin.mooncask.deadline_ms": "soon"}, "mooncask")
