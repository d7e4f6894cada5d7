"""What SGLang's pages are called and which can be used together: no SGLang needed."""

from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from mooncask.engine_adapter.block_store import Place
from mooncask.engine_adapter.sglang.identity import model_fields, pool_fields, shard_of
from mooncask.engine_adapter.sglang.keys import PoolPages, key_of, place_of, usable
from mooncask.engine_adapter.sglang.settings import read_settings
from mooncask.errors import ConfigError

PAGE = sha256(b"a page").hexdigest()


def config(**other: object) -> SimpleNamespace:
    one = {"is_mla_model": False, "tp_rank": 0, "tp_size": 1}
    for part in ("pp", "attn_cp", "dcp"):
        one |= {f"{part}_rank": 0, f"{part}_size": 1}
    return SimpleNamespace(**{**one, **other})


def test_a_page_hash_is_cut_to_the_length_of_a_key_and_other_names_are_hashed() -> None:
    assert key_of(PAGE) == sha256(b"a page").digest()[:16]
    assert key_of("warmup") == sha256(b"warmup").digest()[:16]
    assert key_of("z" * 64) == sha256(b"z" * 64).digest()[:16]


def test_odd_names_have_keys_of_their_own() -> None:
    spaced = PAGE[:30].ljust(64)
    names = [PAGE, PAGE.upper(), spaced, spaced[::-1], "", "\ud800", "\n" + PAGE[:63], PAGE[:63] + "\n", "é", "e\u0301"]
    found = {key_of(name) for name in names}
    assert len(found) == len(names) and {len(key) for key in found} == {16}


def test_the_last_page_before_is_the_parent() -> None:
    assert place_of([PAGE, "x"], 64) == Place(key_of("x"), 2, 64)
    assert place_of([], 64) == Place(b"", 0, 64)
    assert place_of(None, 64) == Place(b"", None, 64)


def test_every_pool_limits_the_prefix() -> None:
    found = usable(4, [PoolPages("draft", [True, True, True, False])])
    assert (found.pages, found.lengths, found.by_pool) == (3, [1, 2, 3], {"draft": 3})


def test_a_trailing_pool_leaves_holes() -> None:
    found = usable(4, [PoolPages("mamba", [False, True, False, False], 1), PoolPages("draft", [True] * 4)])
    assert (found.pages, found.lengths, found.by_pool) == (2, [2], {"mamba": 2, "draft": 4})
    assert usable(4, [PoolPages("swa", [False, True, True, False], 2)]).lengths == [3]
    assert usable(2, [PoolPages("swa", [True, True], 5)]).lengths == [1, 2], "a short prefix needs only its own pages"


def test_a_pool_that_has_nothing_leaves_nothing() -> None:
    found = usable(2, [PoolPages("mamba", [False, False])])
    assert (found.pages, found.lengths, found.by_pool) == (0, [], {})
    assert usable(0, []).pages == 0


def test_the_shard_names_every_way_in_which_kv_is_split() -> None:
    assert shard_of(config(tp_rank=1, tp_size=4), "kv") == "tp 1/4"
    split = config(pp_rank=1, pp_size=2, attn_cp_rank=0, attn_cp_size=2)
    assert shard_of(split, "kv") == "tp 0/1, pp 1/2, cp 0/2"


def test_ranks_with_equal_kv_are_one_shard_but_for_pools_that_are_split() -> None:
    second = config(is_mla_model=True, tp_rank=1, tp_size=2)
    assert shard_of(second, "kv") == "tp any"
    assert shard_of(second, "mamba") == "tp 1/2"


def test_a_served_name_is_not_what_tells_models_apart() -> None:
    one, two = (SimpleNamespace(model_path=f"org/{name}", revision=None) for name in ("one", "two"))
    assert model_fields("served", one, "0.5.23", {}) != model_fields("served", two, "0.5.23", {})
    assert model_fields("served", one, "0.5.23", {}) == model_fields("other", one, "0.5.99", {})
    assert model_fields("served", one, "0.5.23", {"scales": "b"}) != model_fields("served", one, "0.5.23", {})


def test_a_model_in_a_folder_is_told_by_its_files_and_not_by_where_it_lies(tmp_path: Path) -> None:
    def fields(folder: str, config: str) -> dict[str, str]:
        path = tmp_path / folder / "model"
        path.mkdir(parents=True)
        (path / "config.json").write_text(config)
        (path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        return model_fields("", SimpleNamespace(model_path=str(path)), "0.5", {})

    assert fields("a", "{}") == fields("b", "{}")
    assert fields("c", '{"rope_theta": 1}') != fields("d", "{}")


def test_layers_of_a_pipelines_stages_are_in_the_shard_and_not_in_the_family() -> None:
    first, second = (SimpleNamespace(layer_num=n, page_size=16, layout="page_first") for n in (10, 12))
    assert pool_fields("kv", first, "pieces", 2) == pool_fields("kv", second, "pieces", 2)
    assert pool_fields("kv", first, "pieces", 1) != pool_fields("kv", second, "pieces", 1)
    assert pool_fields("kv", first, "pieces", 1) != pool_fields("kv", first, "flat", 1)


def test_settings_are_read_and_wrong_ones_refused() -> None:
    settings = read_settings({"socket": "/s", "deadline_ms": 50, "interface_v1": 1, "mode": "memory"})
    assert settings.address.socket == "/s" and settings.address.deadline_seconds == 0.05 and settings.zero_copy
    assert read_settings(None).address.deadline_seconds == 2.0
    for wrong in ({"deadline_ms": 0}, {"deadline_ms": "1"}, {"mode": "fast"}, {"family": "x"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            read_settings(wrong)
