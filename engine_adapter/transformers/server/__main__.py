"""One worker server: `python -m mooncask.engine_adapter.transformers.server --role decode --model DIR --conductor URL`."""

import asyncio
import logging
import os
import socket as _socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from mooncask.client.socket_path import default_socket_path, http_socket_path
from mooncask.client.worker_api import GONE_SECONDS, Node, Role
from mooncask.engine_adapter.transformers.__main__ import LogLevel
from mooncask.engine_adapter.transformers.loading import LoadPolicy
from mooncask.errors import MooncaskError

log = logging.getLogger("mooncask.worker")
SECRET_VARIABLE = "MOONCASK_WORKER_SECRET"


def main(
    role: Annotated[Role, typer.Option(help="What it begins with; the Conductor may change it.")],
    model: Annotated[Path, typer.Option(help="Folder with config.json and safetensors files.")],
    socket: Annotated[
        str,
        typer.Option(help="The daemon's socket; empty: where this user's daemon listens. It also works without one."),
    ] = "",
    conductor: Annotated[
        list[str] | None, typer.Option(help="http://HOST:PORT of a Conductor; may be repeated.")
    ] = None,
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 takes a free one.")] = "127.0.0.1:0",
    name: Annotated[str, typer.Option(help="Empty: role, host and process id.")] = "",
    model_name: Annotated[str, typer.Option(help="What requests call the model; empty: the folder's name.")] = "",
    node: Annotated[str, typer.Option(help="Name of the daemon's node.")] = "",
    node_pages: Annotated[
        str, typer.Option(help="http://HOST:PORT or unix:PATH of the daemon's JSON pages; empty: beside its socket.")
    ] = "",
    namespace: Annotated[str, typer.Option(help="Empty: named by the model's family.")] = "",
    mode: Annotated[str, typer.Option(help="write_through, write_back or memory; empty: the daemon's default.")] = "",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    block_tokens: Annotated[int, typer.Option(help="Tokens a block; equal for all workers of a model.")] = 16,
    prefill_chunk: Annotated[int, typer.Option(min=1, help="Tokens computed at a time.")] = 256,
    slots: Annotated[int, typer.Option(min=1, max=256, help="Answers at a time.")] = 8,
    slot_tokens: Annotated[int, typer.Option(min=16, help="Tokens of one prompt with its answer.")] = 4096,
    pipeline: Annotated[
        int, typer.Option(min=1, help="Prefill by so many processes, each with a part of the layers.")
    ] = 1,
    load: Annotated[LoadPolicy, typer.Option(help="Load cached blocks when that is faster, always, or never.")] = (
        LoadPolicy.AUTO
    ),
    deadline_seconds: Annotated[float, typer.Option(min=0.001, help="How long the store may take to answer.")] = 2.0,
    drain_seconds: Annotated[float, typer.Option(min=0, help="At SIGTERM, for what is under way.")] = 15.0,
    gone_seconds: Annotated[
        float,
        typer.Option(min=0.5, help="After such a silence the Conductor takes it to be gone; more on busy machines."),
    ] = GONE_SECONDS,
    log_level: Annotated[LogLevel, typer.Option(help="On stderr.")] = LogLevel.INFO,
) -> None:
    """Serves prefills or answers until SIGTERM. The secret it shares with the Conductor is in MOONCASK_WORKER_SECRET."""
    from mooncask.engine_adapter.transformers.engine import Options
    from mooncask.engine_adapter.transformers.server.worker_server import ServerSettings, WorkerServer, run
    from mooncask.engine_adapter.transformers.store_link import StoreAddress

    logging.basicConfig(stream=sys.stderr, level=log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    try:
        socket = socket or default_socket_path()
        settings = ServerSettings(
            name=name or f"{role}-{_socket.gethostname()}-{os.getpid()}",
            role=role,
            listen=listen,
            secret=os.environ.get(SECRET_VARIABLE, ""),
            conductors=conductor or [],
            node=Node(name=node or _socket.gethostname(), pages=node_pages or f"unix:{http_socket_path(socket)}"),
            slots=slots,
            slot_tokens=slot_tokens,
            model_name=model_name,
            pipeline=pipeline,
            gone_seconds=gone_seconds,
        )
        address = StoreAddress(socket, namespace, mode, deadline_seconds)
        server = WorkerServer(settings, model, dtype, block_tokens, address, Options(prefill_chunk, load))
        asyncio.run(run(server, drain_seconds))
    except MooncaskError as exc:
        log.error("%s", exc)
        raise typer.Exit(exc.exit_code) from exc


if __name__ == "__main__":
    typer.run(main)
