"""`mooncask bench`: measures the store beside its limits on this machine."""

import importlib.metadata
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from mooncask.errors import BadRequest
from mooncask.tools.bench.conductor_command import conductor
from mooncask.tools.bench.directory_command import directory
from mooncask.tools.bench.disk_limits import takes_direct_io
from mooncask.tools.bench.http_command import http
from mooncask.tools.bench.layerwise_command import layerwise
from mooncask.tools.bench.mount_command import mount
from mooncask.tools.bench.nodes_command import peers as nodes
from mooncask.tools.bench.options import JsonFile, Quick
from mooncask.tools.bench.pipeline_command import pipeline
from mooncask.tools.bench.plan import FULL, QUICK, Places, Plan
from mooncask.tools.bench.report import document, print_findings
from mooncask.tools.bench.result import Skipped
from mooncask.tools.bench.run import free_bytes, run
from mooncask.tools.bench.summary import summary
from mooncask.tools.bench.vllm_command import vllm
from mooncask.tools.output import console, stages

bench = typer.Typer(help="Measure on this machine.", no_args_is_help=True)
bench.command()(mount)
bench.command()(layerwise)
bench.command()(pipeline)
bench.command()(http)
bench.command("peers")(nodes)
bench.command()(directory)
bench.command()(conductor)
bench.command()(vllm)


@bench.callback()
def main() -> None:
    """Measure on this machine."""


@bench.command()
def store(
    json_file: JsonFile = None,
    nvme: Annotated[
        Path | None, typer.Option(help="Folder on the disk to measure; a temporary one by default.")
    ] = None,
    quick: Quick = False,
    markdown: Annotated[
        Path | None, typer.Option(help="Write the main figures as a Markdown table to this file.", metavar="FILE")
    ] = None,
    peers: Annotated[bool, typer.Option(help="Also measure Mooncake Store and Valkey or Redis, if installed.")] = False,
) -> None:
    """Measure every way in and out of the store beside memcpy, a plain file and a bare socket, with a daemon of its own.

    The full run takes some minutes, 6 GiB of memory and 16 GiB of disk; nothing stays behind.
    """
    plan = QUICK if quick else FULL
    with (
        tempfile.TemporaryDirectory(prefix="mooncask-bench-") as folder,
        _data_folder(nvme, folder) as data,
        stages() as progress,
    ):
        places = Places(Path(folder), Path(data), takes_direct_io(Path(data)))
        _check_room(plan, places)
        findings = run(plan, places, peers, progress)
    if not places.direct:
        findings.skipped.append(Skipped("O_DIRECT", f"{data} refuses it; NVMe figures are those of the page cache"))
    print_findings(console(), findings)
    found = document(findings, shlex.join(["mooncask", *sys.argv[1:]]), importlib.metadata.version("mooncask"))
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    if markdown is not None:
        markdown.write_text(summary(found) + "\n")


def _data_folder(nvme: Path | None, default: str) -> tempfile.TemporaryDirectory[str]:
    """A folder of our own, so that nothing of the user's is touched."""
    return tempfile.TemporaryDirectory(prefix="mooncask-bench-", dir=nvme or default)


def _check_room(plan: Plan, places: Places) -> None:
    wanted = 2 * plan.nvme_bytes
    have = free_bytes(places.data)
    if have < wanted:
        raise BadRequest(
            f"{places.data} has {have >> 20} MiB free and the bench wants {wanted >> 20}; choose with --nvme"
        )
