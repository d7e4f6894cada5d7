"""Whose data folder is it: identity, format version and the lock that keeps a second process out.

FOLDER       which store this is; JSON
LOCK         held with flock by the running process; holds its pid
NAMESPACES   see namespaces.py
index/       see index.py
segments/    see segment_files.py
"""

import fcntl
import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from mooncask.errors import FolderInUse, FolderNotWritable, ForeignFolder, MooncaskError, UnsupportedVersion
from mooncask.tiers.nvme.file_layer import FileLayer
from mooncask.tiers.nvme.record import FORMAT_VERSION

IDENTITY = "FOLDER"
LOCK = "LOCK"
INDEX = "index"
SEGMENTS = "segments"
_OWN_BEFORE_IDENTITY = {LOCK, IDENTITY + ".tmp", "lost+found"}
"""What may lie in a folder that is still nobody's: a first start that was cut short leaves the first two."""
SETTING = "nvme.path"


@dataclass(frozen=True, slots=True)
class Identity:
    store: bytes
    """16 random bytes, in every record's header."""
    segment_bytes: int


class DataFolder:
    """An open, locked data folder. Not safe for several threads."""

    def __init__(self, path: Path, identity: Identity, lock: int) -> None:
        self.path = path
        self.identity = identity
        self._lock = lock

    @classmethod
    def open(cls, path: Path, segment_bytes: int, files: FileLayer) -> "DataFolder":
        """Lock the folder and read its identity; an empty or absent one becomes a new store.

        Raises FolderInUse, ForeignFolder, UnsupportedVersion, FolderNotWritable; the folder is unchanged then, but for
        an empty LOCK file where there was none.
        """
        try:
            path.mkdir(0o700, parents=True, exist_ok=True)
            _refuse_foreign(path)
            lock = _lock(path)
        except OSError as exc:
            raise FolderNotWritable(SETTING, str(path), exc.strerror or str(exc)) from exc
        try:
            identity = _read(path) if (path / IDENTITY).exists() else _create(path, segment_bytes, files)
            (path / SEGMENTS).mkdir(0o700, exist_ok=True)
            files.sync_folder(path)
            return cls(path, identity, lock)
        except OSError as exc:
            os.close(lock)
            raise FolderNotWritable(SETTING, str(path), exc.strerror or str(exc)) from exc
        except MooncaskError:
            os.close(lock)
            raise

    def close(self) -> None:
        """Give up the lock."""
        os.close(self._lock)


def _refuse_foreign(path: Path) -> None:
    names = sorted(entry.name for entry in path.iterdir())
    foreign = [name for name in names if name not in _OWN_BEFORE_IDENTITY]
    if IDENTITY not in names and foreign:
        raise ForeignFolder(str(path), ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else ""))


def _lock(path: Path) -> int:
    """flock dies with its process, so a stale lock can't be left behind."""
    fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        owner = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        raise FolderInUse(str(path), f"process {owner}" if owner else "another process") from exc
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _read(path: Path) -> Identity:
    content = (path / IDENTITY).read_bytes()
    try:
        fields = json.loads(content)
        if fields["kind"] != "mooncask":
            raise ForeignFolder(str(path), f"a {IDENTITY} file that says {fields['kind']!r:.40}")
        version = int(fields["format"])
        if version != FORMAT_VERSION:
            raise UnsupportedVersion(str(path), str(version), str(FORMAT_VERSION))
        return Identity(bytes.fromhex(fields["store"]), int(fields["segment_bytes"]))
    except (ValueError, KeyError, TypeError) as exc:
        raise ForeignFolder(str(path), f"a {IDENTITY} file that Mooncask did not write") from exc


def _create(path: Path, segment_bytes: int, files: FileLayer) -> Identity:
    identity = Identity(uuid.uuid4().bytes, segment_bytes)
    fields = {
        "kind": "mooncask",
        "format": FORMAT_VERSION,
        "store": identity.store.hex(),
        "segment_bytes": segment_bytes,
    }
    files.publish(path / IDENTITY, (json.dumps(fields, indent=1) + "\n").encode())
    files.sync_folder(path.parent)
    return identity


def file_system_of(path: Path) -> str:
    """The type of the file system that `path` is on, such as ext4; "unknown file system" when that can't be told."""
    best, kind = "", "unknown file system"
    target = str(path.resolve())
    for line in Path("/proc/self/mounts").read_text().splitlines():
        fields = line.split(" ")
        mount = fields[1]
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, fields[2]
    return kind
