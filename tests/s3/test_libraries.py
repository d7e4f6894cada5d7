"""Libraries that engines and data programs reach S3 with, against a real daemon: s3fs, awscrt, NIXL's OBJ plugin."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nixl_environment import nixl_python
from s3_door import DOMAIN, S3Door

SUPPORT = Path(__file__).parents[1] / "support"
SETTINGS = {"nvme.path": ""}
BUCKET = "photos"


def run(command: list[str], door: S3Door) -> None:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    done = subprocess.run(
        command, check=False, env={**kept, **door.environment}, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


@pytest.fixture
def photos(s3: Any) -> None:
    s3.create_bucket(Bucket=BUCKET)


# --- s3fs ----------------------------------------------------------------------------------------------------------------


def test_s3fs_reads_and_writes_files(door: S3Door, photos: None, tmp_path: Path) -> None:
    """In a process of its own: fsspec's thread and its loop never end."""
    run([sys.executable, str(SUPPORT / "s3fs_client.py"), BUCKET, str(tmp_path)], door)


# --- awscrt --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_awscrt_names_the_bucket_by_the_host(door: S3Door, photos: None, tmp_path: Path) -> None:
    if os.getuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a host name for the bucket needs a /etc/hosts of the test's own: root, and unshare")
    port = door.endpoint.rpartition(":")[2]
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost {BUCKET}.{DOMAIN}\n")
    inside = 'mount --bind "$0" /etc/hosts && exec "$@"'
    client = [sys.executable, str(SUPPORT / "awscrt_client.py"), f"{BUCKET}.{DOMAIN}:{port}", door.certificate]
    run(["unshare", "--mount", "sh", "-c", inside, str(tmp_path / "hosts"), *client], door)


# --- NIXL ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nixl_puts_and_gets_a_block(door: S3Door, photos: None) -> None:
    python = nixl_python()
    if python is None:
        pytest.skip("NIXL is not here: python tests/support/nixl_environment.py gets it")
    run([str(python), str(SUPPORT / "nixl_client.py"), door.endpoint, BUCKET, str(4 << 20)], door)
