"""The family: equal for the same model wherever it lies, different as soon as anything differs that changes the KV."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import json
import shutil
from pathlib import Path

from tiny_model import write_tiny_llama

from mooncask.engine_adapter.transformers.model import load_model
from mooncask.engine_adapter.weights import weights_digest
from mooncask.errors import ConfigError


def family(folder: Path, dtype: str = "float32", block_tokens: int = 16) -> dict[str, str]:
    return load_model(folder, dtype, block_tokens).family


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


def test_a_copy_of_the_model_elsewhere_is_of_the_same_family(tiny: Path, tmp_path: Path) -> None:
    assert family(tiny) == family(shutil.copytree(tiny, tmp_path / "copy"))


def test_every_value_is_text_and_none_is_empty_but_the_revision(tiny: Path) -> None:
    assert {name for name, value in family(tiny).items() if not value} == {"revision"}


def test_another_number_format_is_another_family(tiny: Path) -> None:
    assert differing(family(tiny), family(tiny, dtype="bfloat16")) == {"dtype"}


def test_another_block_size_is_another_family(tiny: Path) -> None:
    assert differing(family(tiny), family(tiny, block_tokens=32)) == {"block_tokens"}


@pytest.mark.parametrize(
    ("field", "value"), [("rms_norm_eps", 1e-3), ("rope_parameters", {"rope_theta": 5e5, "rope_type": "default"})]
)
def test_a_config_that_was_overridden_is_another_family(tiny: Path, tmp_path: Path, field: str, value: object) -> None:
    folder = shutil.copytree(tiny, tmp_path / "overridden")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, field: value}))
    assert differing(family(tiny), family(folder)) == {"config"}


def test_where_the_config_came_from_is_not_part_of_the_family(tiny: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "renamed")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "_name_or_path": "x", "transformers_version": "5.0"}))
    assert differing(family(tiny), family(folder)) == set()


def test_another_fine_tune_with_equal_headers_and_sizes_is_another_family(tiny: Path, tmp_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "other", seed=1)
    assert (tiny / "model.safetensors").stat().st_size == (other / "model.safetensors").stat().st_size
    assert differing(family(tiny), family(other)) == {"weights"}


def test_one_changed_tensor_is_enough(tiny: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "changed")
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    assert weights_digest(folder) != weights_digest(tiny)


def test_pickled_weights_are_refused(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(ConfigError, match="safetensors"):
        weights_digest(tmp_path)


@pytest.mark.parametrize("data", [b"", b"\xff" * 64, b"\x10\0\0\0\0\0\0\0not json at all!"])
def test_a_file_that_only_pretends_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ConfigError, match="not a safetensors file"):
        weights_digest(tmp_path)
