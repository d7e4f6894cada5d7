"""aws-cli and rclone against a real daemon, as people type them."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from raw_client import payload
from s3_door import REGION, S3Door

SECONDS_MAX = 100.0
FILES = {
    "a.txt": b"hello",
    "empty": b"",
    "folder/b c+d.bin": payload(1, 100_000),
    "folder/deep/ü€.bin": payload(2, 3_000_000),
    "long.bin": payload(3, 20 << 20),
}
"""The last one is longer than what these clients put in one piece."""


def make_files(folder: Path) -> Path:
    for name, body in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(command: list[str], environment: dict[str, str]) -> str:
    """What it printed. Its own proxies and configuration of the machine are left out."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYENV_ROOT") if name in os.environ}
    done = subprocess.run(
        command, check=False, env={**kept, **environment}, capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


# --- aws-cli -------------------------------------------------------------------------------------------------------------


class Aws:
    def __init__(self, door: S3Door) -> None:
        if shutil.which("aws") is None:
            pytest.skip("aws is not in PATH: install awscli")
        self._environment = {**door.environment, "AWS_MAX_ATTEMPTS": "1"}
        self._endpoint = door.endpoint  # Debian 12's aws does not know AWS_ENDPOINT_URL yet

    def __call__(self, *words: str) -> str:
        return run(["aws", "--endpoint-url", self._endpoint, *words], self._environment)

    def json(self, *words: str) -> Any:
        return json.loads(self("s3api", *words, "--output", "json") or "null")


@pytest.fixture
def aws(door: S3Door) -> Aws:
    return Aws(door)


@pytest.mark.slow
def test_aws_s3_syncs_a_folder_both_ways(aws: Aws, bucket: str, tmp_path: Path) -> None:
    source, back = make_files(tmp_path / "source"), tmp_path / "back"
    for path in source.rglob("*"):
        os.utime(
            path, (time.time() - 60,) * 2
        )  # S3's times are whole seconds: what is made in the same one looks newer
    aws("s3", "sync", "--no-progress", str(source), f"s3://{bucket}/x")
    aws("s3", "sync", "--no-progress", f"s3://{bucket}/x", str(back))
    assert files_of(back) == FILES
    assert aws("s3", "sync", "--no-progress", str(source), f"s3://{bucket}/x") == "", "nothing is left to do"
    (source / "a.txt").unlink()
    assert "delete: " in aws("s3", "sync", "--delete", "--no-progress", str(source), f"s3://{bucket}/x")
    aws("s3", "cp", "--no-progress", f"s3://{bucket}/x/long.bin", f"s3://{bucket}/copy")
    aws("s3", "rm", "--recursive", f"s3://{bucket}/x")
    listed = aws("s3", "ls", "--recursive", f"s3://{bucket}/").splitlines()
    assert len(listed) == 1 and listed[0].endswith(f"{len(FILES['long.bin'])} copy")


@pytest.mark.slow
def test_aws_s3api_puts_looks_and_takes_away(aws: Aws, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"hello")
    where = ["--bucket", bucket, "--key", "k ü"]
    put = aws.json("put-object", *where, "--body", str(tmp_path / "f"), "--metadata", "colour=blue")
    head = aws.json("head-object", *where)
    assert head["ETag"] == put["ETag"] and head["ContentLength"] == 5 and head["Metadata"] == {"colour": "blue"}
    aws("s3api", "get-object", *where, str(tmp_path / "g"))
    assert (tmp_path / "g").read_bytes() == b"hello"
    gone = aws.json("delete-objects", "--bucket", bucket, "--delete", '{"Objects":[{"Key":"k ü"}]}')
    assert gone["Deleted"] == [{"Key": "k ü"}]


# --- rclone --------------------------------------------------------------------------------------------------------------


class Rclone:
    def __init__(self, door: S3Door) -> None:
        if shutil.which("rclone") is None:
            pytest.skip("rclone is not in PATH: apt-get install rclone")
        self.environment = {
            "RCLONE_CONFIG": "/dev/null",
            "RCLONE_CONFIG_KV_TYPE": "s3",
            "RCLONE_CONFIG_KV_PROVIDER": "Other",
            "RCLONE_CONFIG_KV_ENDPOINT": door.endpoint,
            "RCLONE_CONFIG_KV_ACCESS_KEY_ID": door.access_key,
            "RCLONE_CONFIG_KV_SECRET_ACCESS_KEY": door.secret,
            "RCLONE_CONFIG_KV_REGION": REGION,
            "RCLONE_S3_UPLOAD_CUTOFF": "8M",
            "RCLONE_RETRIES": "1",
            "RCLONE_LOW_LEVEL_RETRIES": "1",
            **({"RCLONE_CA_CERT": door.certificate} if door.certificate else {}),
        }

    def __call__(self, *words: str) -> str:
        return run(["rclone", *words], self.environment)


@pytest.fixture
def rclone(door: S3Door) -> Rclone:
    return Rclone(door)


def test_rclone_syncs_checks_and_copies(rclone: Rclone, bucket: str, tmp_path: Path) -> None:
    source, back = make_files(tmp_path / "source"), tmp_path / "back"
    remote = f"kv:{bucket}/x"
    rclone("sync", str(source), remote)
    rclone("check", "--one-way", str(source), remote)
    rclone("check", "--download", str(source), remote)
    rclone("copy", remote, f"kv:{bucket}/copy")
    rclone("sync", f"kv:{bucket}/copy", str(back))
    assert files_of(back) == FILES
    sizes = {item["Path"]: item["Size"] for item in json.loads(rclone("lsjson", "-R", "--files-only", remote))}
    assert sizes == {name: len(body) for name, body in FILES.items()}
    (source / "a.txt").unlink()
    rclone("sync", str(source), remote)
    assert "a.txt" not in rclone("lsf", "-R", remote)
    rclone("delete", f"kv:{bucket}")


@pytest.fixture
def mounted(rclone: Rclone, bucket: str, tmp_path: Path) -> Iterator[Path]:
    if not os.access("/dev/fuse", os.W_OK) or (
        shutil.which("fusermount3") is None and shutil.which("fusermount") is None
    ):
        pytest.skip("/dev/fuse can't be used here, or fuse3 is not installed")
    rclone("copy", str(make_files(tmp_path / "source")), f"kv:{bucket}")
    folder = tmp_path / "mount"
    folder.mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = ["rclone", "mount", "--read-only", "--vfs-cache-mode", "off", f"kv:{bucket}", str(folder)]
    with subprocess.Popen(command, env={**kept, **rclone.environment}) as process:
        end = time.monotonic() + 20
        while not os.path.ismount(folder) and time.monotonic() < end and process.poll() is None:
            time.sleep(0.02)
        try:
            assert os.path.ismount(folder)
            yield folder
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=False)
            process.terminate()


@pytest.mark.fuse
def test_rclone_mounts_a_bucket(mounted: Path) -> None:
    assert files_of(mounted) == FILES
    with (mounted / "long.bin").open("rb") as file:
        file.seek(15 << 20)
        assert file.read(1000) == FILES["long.bin"][15 << 20 :][:1000]
