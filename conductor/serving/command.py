"""`mooncask conductor`: the process that clients talk to."""

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from mooncask.errors import BadArgument


def conductor(
    config: Annotated[Path | None, typer.Option(help="conductor.toml; every key has a default but the models.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model beside those of the file: its tokeniser's folder.", metavar="NAME=DIR"),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Change workers' roles as the plan of the pools recommends: [plan] apply.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error; on stderr.")] = "info",
) -> None:
    """Serve models through prefill and decode workers: an OpenAI-compatible door, cache-aware placement, early rejection."""
    import uvloop

    from mooncask.conductor.serving.config import load_config
    from mooncask.conductor.serving.main import run

    logging.basicConfig(
        stream=sys.stderr, level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    models = dict(named_model(told) for told in model or [])
    told = load_config(config, os.environ, models)
    uvloop.run(run(replace(told, plan=replace(told.plan, apply=True)) if apply else told))


def named_model(told: str) -> tuple[str, str]:
    """NAME=DIR, or DIR alone, which is named by its last part as workers do. Raises BadArgument."""
    name, equals, folder = told.partition("=")
    if not equals:
        name, folder = Path(told).resolve().name, told
    if not name or not (Path(folder) / "tokenizer.json").is_file():
        raise BadArgument("--model", repr(told), "NAME=DIR, with tokenizer.json in the folder DIR")
    return name, folder
