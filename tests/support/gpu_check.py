"""The check for a machine with one CUDA GPU: `python tests/support/gpu_check.py [--json FILE] [--device cuda:0] [--small]`.

HBM tier with CUDA IPC between two processes, copies beside pinned ones, the vLLM connector's copies beside computing, and
the transformers pipeline with tokens compared; under six minutes. It needs torch and transformers with CUDA and nothing from
the network; no model is read. Where there is no GPU it says so and ends with 0: nothing was checked, nothing failed.
`--device cpu --small` goes through all of it but the CUDA calls, which is how it is tested; its figures say nothing then.

On a machine that has Python 3.12, torch and transformers and no network, with this folder and what `make gpu-wheels` has fetched:

    python -m pip install --no-index --no-deps --target build/gpu/site build/gpu/wheels/*.whl
    PYTHONPATH=build/gpu/site:.importroot python tests/support/gpu_check.py --json build/gpu-check.json
"""

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    try:
        import torch
    except ImportError:
        print("skipped: torch is not installed")
        return 0
    if options.device != "cpu" and not torch.cuda.is_available():
        print("skipped: torch sees no CUDA GPU")
        return 0
    report = run(options.device, options.small)
    text = json.dumps(report, indent=2)
    print(text)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(text + "\n")
    return 0 if report["ok"] else 1


def run(device: str, small: bool) -> dict[str, Any]:
    """All parts; one that fails is told with its error, and the others are done all the same."""
    from gpu_copies import CopySizes, check_copies
    from gpu_hbm import HbmSizes, check_hbm
    from gpu_pipeline import PipelineSizes, check_pipeline
    from gpu_vllm import VllmSizes, check_vllm

    hbm = HbmSizes(64 << 10, 4) if small else HbmSizes(8 * MIB, 64)
    copies = CopySizes(64 << 10, 4, 2) if small else CopySizes(8 * MIB, 64, 7)
    vllm = (
        VllmSizes(3, 2, 4, 8, 4, 8 << 10, 2, 0)
        if small
        else VllmSizes(32, 8, 16, 256, 128, 128 * MIB, 5, 4096)  # blocks of 2 MiB, as of an 8B model
    )
    pipeline = (
        PipelineSizes(2, 4, 2, 16, (40, 100), 32, 16, 32 * MIB)
        if small
        else PipelineSizes(24, 16, 8, 128, (8192, 16384, 32768), 2048, 64, 32 << 30)
    )
    parts = {
        "hbm": lambda: asdict(check_hbm(device, hbm)),
        "copies": lambda: _copies(check_copies(device, copies)),
        "vllm": lambda: [_vllm(one) for one in check_vllm(device, vllm)],
        "pipeline": lambda: [asdict(one) for one in check_pipeline(device, pipeline, _tell)],
    }
    found: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="seconds"), **_machine(device)}
    found["device"], found["small"] = device, small
    started, failed = time.monotonic(), []
    for name, part in parts.items():
        _tell(name)
        began = time.monotonic()
        try:
            found[name] = part()
        except Exception as error:  # noqa: BLE001 - the top of a part: what went wrong in it is the report
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
            failed.append(name)
        found[f"{name}_wall_seconds"] = round(time.monotonic() - began, 2)
    return {**found, "wall_seconds": round(time.monotonic() - started, 2), "failed": failed, "ok": not failed}


def _copies(found: Any) -> dict[str, float]:
    return {**asdict(found), "in_share_of_pinned": found.in_share, "out_share_of_pinned": found.out_share}


def _vllm(found: Any) -> dict[str, Any]:
    return {**asdict(found), "save_share_of_pinned": found.save_share, "load_share_of_pinned": found.load_share}


def _machine(device: str) -> dict[str, Any]:
    import torch
    import transformers

    gpu = torch.cuda.get_device_name(device) if device != "cpu" else "none"
    return {
        "gpu": gpu,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cuda": torch.version.cuda or "none",
    }


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check HBM tier, copies, vLLM's copies and pipeline on one CUDA GPU.")
    parser.add_argument("--json", type=Path, help="also write the report to this file")
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu to go through it without a GPU")
    parser.add_argument("--small", action="store_true", help="small sizes, whose figures say nothing")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
