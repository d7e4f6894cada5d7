"""What a mount is told when it starts. Plain data; checked in `process.py`."""

import msgspec


class MountOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One mount. It travels as JSON from the command to the process that serves the mount."""

    mountpoint: str
    socket_path: str
    deadline_seconds: float = 10.0
    """How long one request to the daemon may take; what takes longer is EIO."""
    allow_other: bool = False
    read_only: bool = False
    spool_folder: str = ""
    """Where files that are being written lie when they are long; empty: the usual folder for temporary files."""
    ready_descriptor: int = -1
    """A pipe to say "ready" on, and then to close; after that nothing is written to stderr any more."""


ATTRIBUTES_SECONDS = 1.0
"""How long the kernel believes what it was told of a file, and that a name exists."""
FILE_TYPE = "mooncask"
"""In /proc/mounts the type is fuse.mooncask."""
