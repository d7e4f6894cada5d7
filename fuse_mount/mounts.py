"""Which mounts of ours there are, by /proc/self/mountinfo: asking the mount itself would hang where nobody serves it."""

import re
from dataclasses import dataclass
from pathlib import Path

from mooncask.fuse_mount.options import FILE_TYPE


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One line of mountinfo. `device` is major:minor."""

    path: str
    device: str
    type: str

    @property
    def is_ours(self) -> bool:
        return self.type == f"fuse.{FILE_TYPE}"


def parse_mounts(text: str) -> list[MountEntry]:
    """Entries in the order in which they were mounted."""
    found = []
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        parts = fields.split()
        found.append(MountEntry(_unescaped(parts[4]), parts[2], rest.split()[0]))
    return found


def find_mount(path: str) -> MountEntry | None:
    """The last thing mounted at `path`, an absolute path without links; None where nothing is."""
    entries = parse_mounts(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    return next((entry for entry in reversed(entries) if entry.path == path), None)


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
