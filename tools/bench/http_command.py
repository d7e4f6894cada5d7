"""`mooncask bench http`: how fast the S3 door is."""

import importlib.metadata
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from mooncask.errors import BadRequest
from mooncask.tools.bench.http_run import FULL, QUICK, run
from mooncask.tools.bench.options import JsonFile, Quick
from mooncask.tools.bench.report import document, print_findings
from mooncask.tools.output import console, stages

IN_MEMORY = Path("/dev/shm")


def http(
    json_file: JsonFile = None,
    nvme: Annotated[
        Path | None, typer.Option(help="Folder on the disk to measure; a temporary one by default.")
    ] = None,
    quick: Quick = False,
) -> None:
    """Measure S3's PUT and GET beside nginx, which serves the same bytes from memory, and a plain file; daemons of its own.

    The full run takes a minute or two, 3 GiB of memory and 4 GiB of disk; nothing stays behind. nginx is Debian's nginx-light.
    """
    plan = QUICK if quick else FULL
    with (
        _tidying_up_on_sigterm(),
        tempfile.TemporaryDirectory(prefix=f"mooncask-bench-{os.getpid()}-", dir=IN_MEMORY) as memory,
        tempfile.TemporaryDirectory(prefix="mooncask-bench-", dir=nvme) as data,
        stages() as progress,
    ):
        have = shutil.disk_usage(data).free
        if have < plan.disk_bytes:
            raise BadRequest(
                f"{data} has {have >> 20} MiB free and the bench wants {plan.disk_bytes >> 20}; choose with --nvme"
            )
        findings = run(plan, Path(memory), Path(data), progress)
    print_findings(console(), findings)
    if json_file is not None:
        found = document(findings, shlex.join(["mooncask", *sys.argv[1:]]), importlib.metadata.version("mooncask"))
        json_file.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def _tidying_up_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does: daemons, nginx and folders go with it."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
