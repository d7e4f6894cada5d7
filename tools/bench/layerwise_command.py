"""`mooncask bench layerwise`: how much of storing can be seen when a prompt's KV is stored while it is computed."""

import importlib.metadata
import json
import os
import shlex
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from mooncask.engine_adapter.transformers.model_files import cache_folder, smollm2_folder
from mooncask.tools.bench.layerwise_result import FULL, QUICK, facts, table
from mooncask.tools.bench.options import JsonFile, ModelFolder, Quick
from mooncask.tools.bench.report import document, print_findings
from mooncask.tools.bench.result import Fact, Findings
from mooncask.tools.output import console, stages


def layerwise(
    json_file: JsonFile = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="Runs of each length by the tier of 100 %; slower ones have one.")
    ] = FULL.repeats,
    model: ModelFolder = None,
    quick: Quick = False,
) -> None:
    """Measure storing while computing, through a tier of 25, 50 and 100 % of the speed at which prefill makes KV.

    Needs the demo's packages and model. The full run takes 10 minutes and 3 GiB of memory.
    """
    plan = QUICK if quick else replace(FULL, repeats=repeats)
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="mooncask-bench-") as folder, stages() as progress:
        from mooncask.tools.bench.layerwise_run import run  # torch, which the other commands do without

        rows = run(plan, model or smollm2_folder(cache_folder(), progress), Path(folder), progress)
    console().print(table(rows))
    loads.append(os.getloadavg()[0])
    said = Fact("processes that wanted a core, at the end", loads[1], f"(at the beginning {loads[0]:.1f})")
    findings = Findings(facts=[*facts(rows, plan.judged), said])
    print_findings(console(), findings)
    if json_file is not None:
        found = document(findings, shlex.join(["mooncask", *sys.argv[1:]]), importlib.metadata.version("mooncask"))
        found["rows"] = [row.as_json() for row in rows]
        json_file.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
