"""An environment of its own for NIXL, whose wheel wants CUDA's libraries as packages, and needs none of them for S3.

Run as `python tests/support/nixl_environment.py` to make it (some 100 MB): build/nixl. The tests use it when it is there.
"""

import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "nixl"
PACKAGES = ("nixl-cu12==1.5.1", "nixl==1.5.1", "numpy==2.4.6")


def nixl_python() -> Path | None:
    """The interpreter that has NIXL; None when the environment was not made."""
    python = FOLDER / "bin" / "python"
    return python if python.exists() and any(FOLDER.glob("lib/python3*/site-packages/nixl_cu12")) else None


def nixl_packages() -> list[Path]:
    """The folders of NIXL's packages, for an interpreter that has other ones beside them; empty where it is not here."""
    found = sorted(FOLDER.glob("lib/python3*/site-packages/nixl*"))
    return found if any(path.name == "nixl" for path in found) else []


def make() -> None:
    """Does nothing where it is there already."""
    if nixl_python() is None or not nixl_packages():
        venv.create(FOLDER, with_pip=True)
        subprocess.run(
            [FOLDER / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES], check=True
        )


if __name__ == "__main__":
    make()
    sys.exit(0 if nixl_python() else 1)
