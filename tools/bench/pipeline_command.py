"""`mooncask bench pipeline`: time to first token of a long prompt whose layers are computed by one process or by several."""

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
from mooncask.tools.bench.pipeline_result import FULL, QUICK, table
from mooncask.tools.bench.report import document
from mooncask.tools.bench.result import Findings
from mooncask.tools.output import console, stages


def pipeline(
    processes: Annotated[
        list[int] | None, typer.Option(min=2, help="How many share the layers; may be repeated. 2 by default.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Prompts; each is prefilled by one and by several.")
    ] = None,
    json_file: JsonFile = None,
    model: ModelFolder = None,
    quick: Quick = False,
) -> None:
    """Measure prefill of 4,096 tokens by one process and by several that have a part of the layers each.

    Compares every block with those of one process. It is faster where each process has a core. Takes 5 minutes and more.
    """
    plan = QUICK if quick else FULL
    chosen = tuple(dict.fromkeys([1, *(processes or plan.stages[1:])]))
    plan = replace(plan, stages=chosen, repeats=repeats or plan.repeats)
    with tempfile.TemporaryDirectory(prefix="mooncask-bench-") as folder, stages() as progress:
        from mooncask.tools.bench.pipeline_run import run  # torch, which the other commands do without

        rows = run(plan, model or smollm2_folder(cache_folder(), progress), Path(folder), progress)
    console().print(table(rows))
    if json_file is not None:
        found = document(Findings(), shlex.join(["mooncask", *sys.argv[1:]]), importlib.metadata.version("mooncask"))
        found["rows"] = [row.as_json() for row in rows]
        json_file.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    if not all(row.equal for row in rows):
        raise typer.Exit(1)
