"""`mooncask bench peers`: how fast blocks come from another node."""

import importlib.metadata
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from mooncask.tools.bench.nodes_run import FULL, QUICK, run
from mooncask.tools.bench.options import JsonFile, Quick
from mooncask.tools.bench.report import document, print_findings
from mooncask.tools.output import console, stages


def peers(
    json_file: JsonFile = None,
    quick: Quick = False,
    tls: Annotated[
        tuple[Path, Path, Path] | None,
        typer.Option(help="Over TLS: certificate, key and authority, as cluster.tls_*.", metavar="CERT KEY CA"),
    ] = None,
) -> None:
    """Measure gets from another node's memory beside a bare socket, with two daemons of its own on loopback.

    Mooncake Store is measured in the same run if it is installed. The full run takes half a minute and 2 GiB of memory.
    """
    with tempfile.TemporaryDirectory(prefix="mooncask-bench-") as folder, stages() as progress:
        findings = run(QUICK if quick else FULL, Path(folder), progress, _settings(tls))
    print_findings(console(), findings)
    if json_file is not None:
        found = document(findings, shlex.join(["mooncask", *sys.argv[1:]]), importlib.metadata.version("mooncask"))
        json_file.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")


def _settings(tls: tuple[Path, Path, Path] | None) -> dict[str, str]:
    if tls is None:
        return {}
    certificate, key, authority = (str(path.absolute()) for path in tls)
    return {"tls_certificate": certificate, "tls_key": key, "tls_ca": authority}
