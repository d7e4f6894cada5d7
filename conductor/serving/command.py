"""`mooncask conductor`: the process that clients talk to."""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer


def conductor(
    config: Annotated[Path | None, typer.Option(help="conductor.toml; every key has a default but the models.")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error; on stderr.")] = "info",
) -> None:
    """Serve models through prefill and decode workers: an OpenAI-compatible door, cache-aware placement, early rejection."""
    from mooncask.conductor.serving.config import load_config
    from mooncask.conductor.serving.main import run

    logging.basicConfig(
        stream=sys.stderr, level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    asyncio.run(run(load_config(config, os.environ)))
