"""`mooncask bench vllm`: what a hit is worth to vLLM, by where its blocks are."""

import importlib.metadata
import json
import shlex
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from mooncask.engine_adapter.transformers.model_files import cache_folder, smollm2_folder
from mooncask.tools.bench.options import JsonFile, ModelFolder, Quick
from mooncask.tools.bench.report import document
from mooncask.tools.bench.result import Findings
from mooncask.tools.bench.vllm_process import vllm_command
from mooncask.tools.bench.vllm_run import FULL, QUICK, run, table
from mooncask.tools.output import console, stages


def vllm(
    python: Annotated[
        Path | None,
        typer.Option(
            help="The interpreter that has vLLM and Mooncask, by default this one; make engines makes build/engines/vllm.",
            metavar="PYTHON",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Prompts of each length; figures are medians.")] = FULL.repeats,
    json_file: JsonFile = None,
    model: ModelFolder = None,
    quick: Quick = False,
) -> None:
    """Measure vLLM's time to first token on CPU: cold, and with the prefix in DRAM, on NVMe and at a peer.

    Two daemons and two engines of its own. The full run takes some minutes, 8 GiB of memory and 8 GiB of disk.
    """
    command = vllm_command(python or Path(sys.executable))
    plan = QUICK if quick else replace(FULL, repeats=repeats)
    with tempfile.TemporaryDirectory(prefix="mooncask-bench-") as folder, stages() as progress:
        rows = run(plan, command, model or smollm2_folder(cache_folder(), progress), Path(folder), progress)
    console().print(table(rows))
    if json_file is not None:
        found = document(Findings(), shlex.join(["mooncask", *sys.argv[1:]]), importlib.metadata.version("mooncask"))
        found["rows"] = [row.as_json() for row in rows]
        json_file.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
