"""The systemd files, by systemd's own tools; and that the daemon can live with what its unit forbids."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from child_processes import until
from daemon_process import DaemonProcess

from mooncask.client.family import Family
from mooncask.client.local import LocalClient
from mooncask.daemon.config import ShutdownSection
from mooncask.daemon.main import STOP_SECONDS
from mooncask.errors import AddressInUse, BadArgument, ConfigError, FolderInUse

FILES = Path(__file__).parents[2] / "packaging" / "systemd"
UNITS = sorted(path.name for path in FILES.glob("*.service"))
SECONDS = 60.0
EXPOSURE_MAX = 3.0
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f'{name} is not installed; "make test-deps" as root installs it')
    return found


def ran(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout


def settings(unit: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (FILES / unit).read_text().splitlines():
        if re.match(r"\w+=", line):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def seconds(unit: str, name: str) -> float:
    [value] = settings(unit)[name]
    return float(value.removesuffix("s"))


# --- what systemd says of them ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
def test_the_unit_is_valid(unit: str, tmp_path: Path) -> None:
    """With the installation that the tests run in at the place of /opt/mooncask, since commands must exist."""
    installed = str(Path(sys.executable).parent)
    for name in UNITS:
        text = (FILES / name).read_text()
        assert "/opt/mooncask/bin/" in text
        (tmp_path / name).write_text(text.replace("/opt/mooncask/bin", installed))
    name = unit.replace("@.", "@mnt-kv.")
    if name != unit:
        (tmp_path / name).write_text((tmp_path / unit).read_text())
    run = subprocess.run(
        [tool("systemd-analyze"), "verify", "--man=no", str(tmp_path / name)],
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    said = [line for line in run.stderr.splitlines() if "mooncask" in line]
    assert (run.returncode, said) == (0, []), run.stderr


def test_the_daemons_exposure_is_low() -> None:
    text = ran(tool("systemd-analyze"), "security", "--offline=true", "--no-pager", str(FILES / "mooncask.service"))
    [exposure] = re.findall(r"Overall exposure level for mooncask.service: ([0-9.]+)", text)
    assert float(exposure) < EXPOSURE_MAX, text


def test_the_user_is_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    ran(tool("systemd-sysusers"), f"--root={tmp_path}", str(FILES / "mooncask.sysusers.conf"))
    [user] = [line for line in (tmp_path / "etc/passwd").read_text().splitlines() if line.startswith("mooncask:")]
    assert user.endswith(":/var/lib/mooncask:/usr/sbin/nologin")
    assert "\nmooncask:" in "\n" + (tmp_path / "etc/group").read_text()


def test_the_folders_are_made(tmp_path: Path) -> None:
    """Below a root of the test's own: these tools act on the whole machine otherwise."""
    (tmp_path / "etc").mkdir()
    ran(tool("systemd-sysusers"), f"--root={tmp_path}", str(FILES / "mooncask.sysusers.conf"))
    ran(tool("systemd-tmpfiles"), f"--root={tmp_path}", "--create", str(FILES / "mooncask.tmpfiles.conf"))
    for folder in ("etc/mooncask", "var/lib/mooncask", "run/mooncask"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o750, folder


# --- what it has in common with the daemon ----------------------------------------------------------------------------


def test_a_stop_may_take_longer_than_the_flush() -> None:
    assert seconds("mooncask.service", "TimeoutStopSec") > ShutdownSection().flush_seconds + STOP_SECONDS


def test_a_start_that_cannot_succeed_is_not_tried_again() -> None:
    [codes] = settings("mooncask.service")["RestartPreventExitStatus"]
    wanted = {error.exit_code for error in (ConfigError, AddressInUse, FolderInUse, BadArgument)}
    assert {int(code) for code in codes.split()} == wanted


def test_the_example_config_lies_where_the_unit_looks_and_names_folders_that_it_may_write() -> None:
    unit = settings("mooncask.service")
    assert all("--config /etc/mooncask/mooncask.toml" in line for line in unit["ExecStart"])
    text = (FILES.parent / "etc" / "mooncask.toml").read_text()
    assert unit["RuntimeDirectory"] == unit["StateDirectory"] == ["mooncask"]
    assert '\npath = "/run/mooncask/' in text and '\npath = "/var/lib/mooncask/' in text


# --- what the daemon can live with ------------------------------------------------------------------------------------


def work(daemon: DaemonProcess) -> None:
    """Puts and gets of blocks on both tiers."""
    with LocalClient.connect(daemon.socket_path) as client:
        namespace = client.open_namespace(name="kv-test", family=Family(model="m"), shard="")
        keys = [bytes([i]) * 16 for i in range(40)]
        for key in keys:
            client.put(namespace, [key], [key * (1 << 17)])  # 80 MiB, more than DRAM has
        blocks = client.acquire(namespace, keys[:5])
        assert all(block is not None for block in blocks)
        blocks.close()


def test_it_runs_without_memory_that_is_both_writable_and_executable(tmp_path: Path) -> None:
    """The kernel's own form of MemoryDenyWriteExecute=, set before the daemon's program starts and kept by it."""
    assert settings("mooncask.service")["MemoryDenyWriteExecute"] == ["yes"]
    probe = [sys.executable, "-c", f"import ctypes; exit(ctypes.CDLL(None).prctl({PR_SET_MDWE}, 1, 0, 0, 0) != 0)"]
    if subprocess.run(probe, check=False, timeout=SECONDS).returncode:
        pytest.skip("this kernel has no PR_SET_MDWE (it came with Linux 6.3)")
    with DaemonProcess(tmp_path) as daemon:
        daemon.under = (
            sys.executable,
            "-c",
            (
                f"import ctypes, os, sys; ctypes.CDLL(None).prctl({PR_SET_MDWE}, {PR_MDWE_REFUSE_EXEC_GAIN}, 0, 0, 0);"
                "os.execv(sys.argv[1], sys.argv[1:])"
            ),
        )
        daemon.run()
        work(daemon)
        assert daemon.stop() == 0


def calls_of(group: str) -> set[str]:
    """All system calls of one of systemd's groups."""
    found: set[str] = set()
    for line in ran(tool("systemd-analyze"), "syscall-filter", group).splitlines()[1:]:
        name = line.strip()
        if name.startswith("@"):
            found |= calls_of(name)
        elif name and not name.startswith("#"):
            found.add(name)
    return found


def allowed_calls() -> set[str]:
    """As systemd puts the unit's lines together, in their order."""
    found: set[str] = set()
    for line in settings("mooncask.service")["SystemCallFilter"]:
        for word in line.removeprefix("~").split():
            calls = calls_of(word) if word.startswith("@") else {word}
            found = found - calls if line.startswith("~") else found | calls
    return found


@pytest.mark.slow
async def test_it_makes_no_system_call_that_the_unit_forbids(tmp_path: Path) -> None:
    trace = tmp_path / "calls"
    with DaemonProcess(tmp_path) as daemon:
        daemon.under = (tool("strace"), "-D", "-f", "-qq", "-c", "-U", "name", "-o", str(trace))
        daemon.run()
        work(daemon)
        assert daemon.stop() == 0
    await until(lambda: trace.stat().st_size)  # the tracer is no child of ours: it writes when all it traced has ended
    made = set(re.findall(r"^(\w+)$", trace.read_text(), re.MULTILINE)) - {"syscall", "total"}
    assert {"pidfd_open", "io_submit", "pwritev", "preadv", "fdatasync"} & made, made
    assert made - allowed_calls() == set()
