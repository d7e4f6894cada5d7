"""`mooncask bench mount`: how fast files are read and listed through a mount."""

import importlib.metadata
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

from mooncask.tools.bench.mount_run import FULL, QUICK, run
from mooncask.tools.bench.options import JsonFile, Quick
from mooncask.tools.bench.report import document, print_findings
from mooncask.tools.output import console, stages

IN_MEMORY = Path("/dev/shm")


def mount(
    json_file: JsonFile = None,
    quick: Quick = False,
) -> None:
    """Measure a mount beside a plain mfusepy file system and plain files in memory, with a daemon of its own.

    The full run takes half a minute and 2 GiB of memory; nothing stays behind. Needs what `mooncask mount` needs.
    """
    with (
        tempfile.TemporaryDirectory(prefix=f"mooncask-bench-{os.getpid()}-", dir=IN_MEMORY) as folder,
        stages() as progress,
    ):
        findings = run(QUICK if quick else FULL, Path(folder), progress)
    print_findings(console(), findings)
    if json_file is not None:
        found = document(findings, shlex.join(["mooncask", *sys.argv[1:]]), importlib.metadata.version("mooncask"))
        json_file.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
