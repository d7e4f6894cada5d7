"""A real mount of a real daemon, as a process of its own: what `mooncask mount` becomes, unmounted at the end whatever happens.

with MountProcess.start(daemon.socket_path, tmp_path / "mnt") as mount:
    (mount.path / "ns/blocks/key").read_bytes()
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

SECONDS = 20.0


def why_no_mount() -> str:
    """Why nothing can be mounted here; empty where it can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "needs /dev/fuse (root)"
    if shutil.which("fusermount3") is None:
        return "needs Debian's fuse3; make test-deps installs it"
    return ""


def is_mounted(path: Path) -> bool:
    return any(line.split()[4] == str(path) for line in Path("/proc/self/mountinfo").read_text().splitlines())


def run(*command: str | Path, ok: bool = True, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """A program that people use on files, with an end in any case."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, errors="surrogateescape", timeout=seconds, check=False
    )
    assert not ok or done.returncode == 0, done.stderr
    return done


def wait_until(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """For what another process brings about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def mooncask(*arguments: str | Path, ok: bool = True) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "mooncask.tools", *arguments, ok=ok)


class MountProcess:
    """One mount. `process` serves it; its errors are in `log_path`."""

    def __init__(self, path: Path, process: "subprocess.Popen[bytes]", log_path: Path) -> None:
        self.path, self.process, self.log_path = path, process, log_path

    @classmethod
    def start(cls, socket_path: str, path: Path, **options: float | str | bool) -> Self:
        """Returns when the mount can be used. `options` as `MountOptions` has them."""
        path.mkdir(exist_ok=True)
        log_path = path.with_name(path.name + ".log")
        told = json.dumps({"mountpoint": str(path), "socket_path": socket_path, **options})
        command = [sys.executable, "-m", "mooncask.fuse_mount", told]
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)
        mount = cls(path, process, log_path)
        try:
            mount.wait_until_mounted()
        except BaseException:
            mount.close()
            raise
        return mount

    def wait_until_mounted(self) -> None:
        deadline = time.monotonic() + SECONDS
        while not is_mounted(self.path):
            assert self.process.poll() is None, self.log_path.read_text()
            assert time.monotonic() < deadline, "it was not mounted in time"
            time.sleep(0.005)
        self.path.stat()  # answered when the kernel and the process know each other

    def kill(self) -> None:
        """SIGKILL: the mount stays, with nobody who serves it."""
        self.process.kill()
        self.process.wait()

    def unmount(self) -> None:
        """As `mooncask umount` does; the process ends by itself."""
        mooncask("umount", self.path)
        self.process.wait(SECONDS)

    def close(self) -> None:
        """Ends it whatever holds it: a mount namespace that somebody made meanwhile has a copy of every mount."""
        self.process.terminate()
        try:
            self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            if is_mounted(self.path):
                run("fusermount3", "-u", "-z", self.path, ok=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
