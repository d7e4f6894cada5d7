"""`mooncask serve`: starts the daemon in this process's place, with options handed on as configuration variables.

What the options mean and which values are allowed is the daemon's knowledge (`daemon/config_source.py`), which names the
key when one is wrong.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

VARIABLES = {
    "socket": "MOONCASK_SOCKET_PATH",
    "listen": "MOONCASK_HTTP_LISTEN",
    "dram": "MOONCASK_DRAM_CAPACITY",
    "nvme": "MOONCASK_NVME_PATH",
    "nvme_capacity": "MOONCASK_NVME_CAPACITY",
    "policy": "MOONCASK_DRAM_POLICY",
    "log_level": "MOONCASK_LOG_LEVEL",
}
"""Option by option, the variable that overrides the configuration file."""


def serve(
    config: Annotated[
        Path | None, typer.Option(help="TOML file; variables and options override it.", metavar="FILE")
    ] = None,
    socket: Annotated[str | None, typer.Option(help="Path of the local socket.")] = None,
    listen: Annotated[str | None, typer.Option(help="HTTP host:port, 127.0.0.1:9470 by default.")] = None,
    dram: Annotated[str | None, typer.Option(help="Size of the DRAM tier, such as 4GiB.")] = None,
    nvme: Annotated[str | None, typer.Option(help="Data folder of the NVMe tier; none by default.")] = None,
    nvme_capacity: Annotated[str | None, typer.Option(help="Size of the NVMe tier, such as 100GiB.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="Eviction policy of DRAM: lru, fifo, lfu, s3fifo, 2q, arc or sieve.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Run the daemon of this node until SIGTERM or Ctrl-C. Without options: 1 GiB of DRAM, no NVMe, loopback.

    Options win over MOONCASK_<SECTION>_<KEY> variables, which win over the file. Without --config the file is the one
    that MOONCASK_CONFIG names, or none. packaging/etc/mooncask.toml explains every key.

    SIGHUP reads the file and the variables again and says in the log what has changed, or which key needs a restart.
    SIGTERM writes what is not on disk yet, for at most shutdown.flush_seconds, and ends with 0. A start that is refused
    is one line and exit code 78.
    """
    options = {
        "socket": socket,
        "listen": listen,
        "dram": dram,
        "nvme": nvme,
        "nvme_capacity": nvme_capacity,
        "policy": policy,
        "log_level": log_level,
    }
    environment = {**os.environ, **{VARIABLES[name]: value for name, value in options.items() if value is not None}}
    os.execve(sys.executable, daemon_command(config), environment)


def daemon_command(config: Path | None = None) -> list[str]:
    """The command line that runs the daemon with this Python."""
    return [sys.executable, "-m", "mooncask.daemon", *(["--config", str(config)] if config else [])]
