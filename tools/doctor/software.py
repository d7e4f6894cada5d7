"""Python, the libraries, and the daemon: are they there, and of versions that fit."""

import importlib.metadata
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from mooncask.errors import DaemonUnavailable, MooncaskError
from mooncask.tools.connection import connected, socket_of
from mooncask.tools.doctor.finding import Finding, note, ok, wrong

DAEMON_SECONDS = 5.0
_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?\s*(?:\(?>=\s*([0-9][0-9.]*))?")


@dataclass(frozen=True, slots=True)
class Package:
    """A library that is needed, from `wanted` on; `found` is empty when it is not installed."""

    name: str
    wanted: str
    found: str


def check_software() -> list[Finding]:
    """Python and the libraries of a plain installation."""
    metadata = importlib.metadata.metadata("mooncask")
    return [
        judge_python(sys.version_info[:3], metadata["Requires-Python"] or ""),
        judge_packages(_packages(importlib.metadata.requires("mooncask") or [])),
    ]


def judge_python(version: tuple[int, ...], wanted: str) -> Finding:
    """`wanted` as ">=3.11,<3.14"."""
    found = ".".join(map(str, version))
    for bound in wanted.split(","):
        least, most = bound.strip().startswith(">="), bound.strip().startswith("<")
        number = _numbers(bound.strip("<>= "))
        if (least and version < number) or (most and version >= number):
            return wrong("Python", found, f"this version runs on {wanted}")
    return ok("Python", found)


def judge_packages(packages: list[Package]) -> Finding:
    absent = [package.name for package in packages if not package.found]
    old = [
        f"{package.name} {package.found} (needs {package.wanted})"
        for package in packages
        if package.found and _numbers(package.found) < _numbers(package.wanted)
    ]
    if absent or old:
        found = "; ".join([*(f"no {name}" for name in absent), *old])
        return wrong("libraries", found, "pip install --upgrade mooncask")
    return ok("libraries", ", ".join(f"{package.name} {package.found}" for package in packages))


def check_daemon(socket: str | None) -> list[Finding]:
    """Is it there, of our version, ready, and are its tiers well."""
    what, path = "daemon", socket_of(socket)
    try:
        with connected(socket, DAEMON_SECONDS) as client:
            status, ours = client.status(), importlib.metadata.version("mooncask")
    except DaemonUnavailable as error:
        return [
            wrong(what, f"none at {path}: {error.why}", 'start one with "mooncask serve" or systemctl start mooncask')
        ]
    except MooncaskError as error:
        return [wrong(what, str(error), "see its log")]
    findings = [judge_daemon(path, status.version, ours, status.ready)]
    for tier in status.tiers:
        if tier.state == "degraded":
            name = {1: "hbm", 2: "dram", 3: "nvme"}.get(tier.tier, str(tier.tier))
            findings.append(wrong(f"{name} tier", "takes no writes", "look for disk faults in the daemon's log"))
    return findings


def judge_daemon(path: str, theirs: str, ours: str, ready: bool) -> Finding:
    found = f"version {theirs} at {path}"
    if theirs != ours:
        return wrong(
            "daemon", f"{found}, this command is {ours}", "install one version for both and restart the daemon"
        )
    return ok("daemon", found) if ready else note("daemon", f"{found} is starting", "wait until it is ready")


def _packages(requirements: Iterable[str]) -> list[Package]:
    """Those of a plain installation, without the extras."""
    found = []
    for text in requirements:
        match = _REQUIREMENT.match(text)
        if match is None or "extra ==" in text:
            continue
        try:
            version = importlib.metadata.version(match[1])
        except importlib.metadata.PackageNotFoundError:
            version = ""
        found.append(Package(match[1], match[2] or "0", version))
    return found


def _numbers(version: str) -> tuple[int, ...]:
    """(1, 2, 3) of "1.2.3rc1": enough to compare releases."""
    return tuple(int(found[0]) for part in version.split(".") if (found := re.match(r"\d+", part)))
