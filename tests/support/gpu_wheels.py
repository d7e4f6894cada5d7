"""Downloads what `gpu_check.py` needs beside torch and transformers, for Python 3.12 on x86-64: `python gpu_wheels.py FOLDER`.

Versions are those of constraints.txt; about 15 MB, so that all of it can be carried to a machine without a network.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "aiohappyeyeballs", "aiohttp", "aiosignal", "attrs", "click", "frozenlist", "idna", "markdown-it-py", "mdurl",
    "msgspec", "multidict", "prometheus-client", "propcache", "pygments", "rich", "rocksdict", "shellingham",
    "sortedcontainers", "typer", "typing-extensions", "uvloop", "xxhash", "yarl",
)  # fmt: skip
"""The daemon's dependencies and theirs; numpy comes with transformers."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def main(folder: Path) -> None:
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    choice = ["--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp", *platforms]
    where = ["--constraint", str(ROOT / "constraints.txt"), "--dest", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *choice, *where, *PACKAGES], check=True)
    print(f"{sum(wheel.stat().st_size for wheel in folder.glob('*.whl')) / 1e6:.0f} MB in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
