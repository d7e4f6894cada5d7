"""What the mount and RDMA need: devices, libraries, packages. All of it is optional."""

import ctypes.util
import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from mooncask.tools.doctor.finding import Finding, note, ok

INFINIBAND = Path("/sys/class/infiniband")
DEBIAN_PYVERBS = Path("/usr/lib/python3/dist-packages/pyverbs")
"""Where the daemon finds it too, whatever Python environment it is in."""


def check_devices() -> list[Finding]:
    """All of this module."""
    return [
        judge_fuse(fuse_lacks()),
        judge_rdma(rdma_ports(INFINIBAND), has_pyverbs()),
    ]


def judge_fuse(lacks: list[str]) -> Finding:
    """`lacks`: what is missing for `mooncask mount`, each with how to get it."""
    if not lacks:
        return ok("FUSE", "/dev/fuse, libfuse 3, fusermount3 and mfusepy are there")
    return note("FUSE", "mooncask mount will not work here", "; ".join(lacks))


def judge_rdma(ports: Mapping[str, str], has_pyverbs: bool) -> Finding:
    """`ports`: "device/port" to its state, as the kernel words it: "4: ACTIVE"."""
    if not ports:
        return ok("RDMA", "no devices; peers use TCP")
    down = [port for port, state in ports.items() if "ACTIVE" not in state]
    found = ", ".join(f"{port} {state}" for port, state in ports.items())
    if down:
        return note("RDMA", found, f"{', '.join(down)}: bring the link up, or peers use TCP")
    if not has_pyverbs:
        return note("RDMA", found, "apt install python3-pyverbs ibverbs-providers, or peers use TCP")
    return ok("RDMA", found)


def has_pyverbs() -> bool:
    return importlib.util.find_spec("pyverbs") is not None or DEBIAN_PYVERBS.is_dir()


def fuse_lacks() -> list[str]:
    lacks = []
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        lacks.append("/dev/fuse cannot be opened: modprobe fuse, or in a container --device /dev/fuse")
    if ctypes.util.find_library("fuse3") is None:
        lacks.append("no libfuse 3: apt install libfuse3-3")
    if os.getuid() != 0 and shutil.which("fusermount3") is None:
        lacks.append("no fusermount3: apt install fuse3")
    if importlib.util.find_spec("mfusepy") is None:
        lacks.append("no mfusepy: pip install mooncask[fuse]")
    return lacks


def rdma_ports(folder: Path) -> dict[str, str]:
    """State of each port by "device/port"."""
    found = {}
    for state in sorted(folder.glob("*/ports/*/state")):
        found[f"{state.parts[-4]}/{state.parts[-2]}"] = state.read_text().strip()
    return found
