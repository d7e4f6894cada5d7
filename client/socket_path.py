"""Where the daemon of this user listens when nobody says otherwise. `daemon/socket_file.py` decides the same way."""

import os
from collections.abc import Mapping

VARIABLES = ("MOONCASK_SOCKET", "MOONCASK_SOCKET_PATH")
"""Each names the socket; the first one that is set wins. The second is also the daemon's own setting."""


def default_socket_path(environment: Mapping[str, str] | None = None, uid: int | None = None) -> str:
    """The path to connect to, by this process's environment and user unless others are given."""
    found = os.environ if environment is None else environment
    named = next((found[name] for name in VARIABLES if found.get(name)), None)
    if named:
        return named
    if found.get("XDG_RUNTIME_DIR"):
        return f"{found['XDG_RUNTIME_DIR']}/mooncask.sock"
    owner = os.getuid() if uid is None else uid
    return "/run/mooncask/mooncask.sock" if owner == 0 else f"/tmp/mooncask-{owner}/mooncask.sock"


def http_socket_path(socket_path: str) -> str:
    """Where the same daemon answers HTTP on a Unix socket: beside its other one, for the same users."""
    stem, dot, suffix = socket_path.rpartition(".")
    return f"{stem}-http.{suffix}" if dot and "/" not in suffix else f"{socket_path}-http"
