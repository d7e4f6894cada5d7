"""One stage of a pipeline, started by its head (`stages.py`) with the sockets it talks through."""

import logging
import socket
import sys
from typing import Annotated

import typer

from mooncask.errors import WorkerUnavailable

log = logging.getLogger("mooncask.stage")
NO_NEIGHBOUR = -1


def main(
    control: Annotated[int, typer.Option(help="Descriptor of the socket to the head.")],
    before: Annotated[int, typer.Option(help="Descriptor of the socket from the stage before; -1: this is the first.")],
    after: Annotated[int, typer.Option(help="Descriptor of the socket to the next stage; -1: this is the last.")],
) -> None:
    """Not to be started by hand: see `mooncask worker --pipeline`."""
    from transformers.utils import logging as transformers_logging

    from mooncask.engine_adapter.transformers.pipeline.channel import stage_channel
    from mooncask.engine_adapter.transformers.pipeline.stage import run_stage

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers' own
    try:
        run_stage(stage_channel(socket.socket(fileno=control)), _neighbour(before), _neighbour(after))
    except WorkerUnavailable as exc:  # how every stage ends: its head, or a neighbour that its head will replace
        log.info("stage ends: %s", exc)


def _neighbour(descriptor: int) -> socket.socket | None:
    return None if descriptor == NO_NEIGHBOUR else socket.socket(fileno=descriptor)


if __name__ == "__main__":
    typer.run(main)
