"""Puts a worker together: model, store, role; and runs it until its requests end."""

import logging
import os
import sys
from pathlib import Path
from typing import BinaryIO

from transformers.utils import logging as transformers_logging

from mooncask.engine_adapter.transformers.decode import DecodeWorker
from mooncask.engine_adapter.transformers.engine import Engine, Options
from mooncask.engine_adapter.transformers.messages import Ready
from mooncask.engine_adapter.transformers.model import load_model
from mooncask.engine_adapter.transformers.prefill import PrefillWorker
from mooncask.engine_adapter.transformers.serving import serve
from mooncask.engine_adapter.transformers.store_link import StoreAddress, StoreLink
from mooncask.errors import DaemonUnavailable, DeadlineExceeded

log = logging.getLogger(__name__)

ROLES: dict[str, type[PrefillWorker] | type[DecodeWorker]] = {"prefill": PrefillWorker, "decode": DecodeWorker}


def run_worker(
    role: str, folder: Path, dtype: str, block_tokens: int, address: StoreAddress, options: Options, answers: BinaryIO
) -> None:
    """Raises ConfigError and UnsupportedModel for what can't be served, FamilyMismatch for a namespace of other KV.

    A daemon that is not there is no reason not to start: the worker computes everything until one is.
    """
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers' own
    model = load_model(folder, dtype, block_tokens)
    link = StoreLink(address, f"{role} {os.getpid()}", model.family, model.layout)
    engine = Engine(model, link, options)
    try:
        namespace = _connect(link)
        engine.warm_up()
        serve(ROLES[role](engine).run, _ready(role, engine, namespace), sys.stdin.buffer, answers)
    finally:
        link.close()


def _connect(link: StoreLink) -> str:
    try:
        return link.connect()[1].name
    except (DaemonUnavailable, DeadlineExceeded) as exc:
        log.warning("starting without a store: %s", exc)
        return ""


def _ready(role: str, engine: Engine, namespace: str) -> Ready:
    model, layout = engine.model, engine.layout
    return Ready(
        role=role,
        model=model.name,
        pid=os.getpid(),
        dtype=layout.dtype,
        block_tokens=layout.block_tokens,
        block_bytes=layout.block_bytes,
        namespace=namespace,
        family=model.family,
        prefill_tokens_per_s=engine.speeds.prefill_tokens or 0.0,
    )
