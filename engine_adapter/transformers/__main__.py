"""One worker: `python -m mooncask.engine_adapter.transformers --role prefill|decode --model DIR --socket PATH`."""

import logging
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mooncask.engine_adapter.transformers.loading import LoadPolicy
from mooncask.engine_adapter.transformers.serving import take_stdout
from mooncask.errors import MooncaskError

log = logging.getLogger("mooncask.worker")


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def main(
    role: Annotated[Role, typer.Option(help="Bring prompts into the store, or answer them.")],
    model: Annotated[Path, typer.Option(help="Folder with config.json and safetensors files.")],
    socket: Annotated[
        str, typer.Option(help="The daemon's socket; the worker also starts and works without a daemon.")
    ],
    namespace: Annotated[str, typer.Option(help="Empty: named by the model's family.")] = "",
    mode: Annotated[str, typer.Option(help="write_through, write_back or memory; empty: the daemon's default.")] = "",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    block_tokens: Annotated[int, typer.Option(help="Tokens a block; equal for all workers of a model.")] = 16,
    prefill_chunk: Annotated[int, typer.Option(min=1, help="Tokens computed at a time.")] = 256,
    load: Annotated[LoadPolicy, typer.Option(help="Load cached blocks when that is faster, always, or never.")] = (
        LoadPolicy.AUTO
    ),
    deadline_seconds: Annotated[float, typer.Option(min=0.001, help="How long the store may take to answer.")] = 2.0,
    publish_tokens: Annotated[
        bool, typer.Option("--publish-tokens", help="Tell routers that follow the daemon's KV events what is stored.")
    ] = False,
    log_level: Annotated[LogLevel, typer.Option(help="On stderr.")] = LogLevel.WARNING,
) -> None:
    """Reads requests from stdin and writes answers to stdout, one JSON object a line; ends with stdin."""
    from mooncask.engine_adapter.transformers.engine import Options
    from mooncask.engine_adapter.transformers.store_link import StoreAddress
    from mooncask.engine_adapter.transformers.worker import run_worker

    logging.basicConfig(stream=sys.stderr, level=log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    answers = take_stdout()
    try:
        address = StoreAddress(socket, namespace, mode, deadline_seconds, publish_tokens)
        run_worker(role, model, dtype, block_tokens, address, Options(prefill_chunk, load), answers)
    except MooncaskError as exc:
        log.error("%s", exc)
        raise typer.Exit(exc.exit_code) from exc


if __name__ == "__main__":
    typer.run(main)
