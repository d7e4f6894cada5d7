"""`mooncask doctor`: what each fact is judged to be, and the command on this very machine."""

import resource
import tempfile
from pathlib import Path

import pytest
from command_line import CommandLine
from daemon_process import DaemonProcess

from mooncask.tools.doctor.devices import judge_rdma, rdma_ports
from mooncask.tools.doctor.disk import Measured, judge_disk
from mooncask.tools.doctor.finding import State
from mooncask.tools.doctor.limits import (
    judge_clock_sync,
    judge_huge_pages,
    judge_memfd,
    judge_memlock,
    judge_open_files,
    judge_pidfd,
    judge_ptrace,
    judge_shared_memory,
    read_meminfo,
)
from mooncask.tools.doctor.software import Package, judge_daemon, judge_packages, judge_python

DISK = Path("/data")


def test_few_open_files_are_wrong_and_some_could_be_more() -> None:
    assert [judge_open_files(n).state for n in (256, 1024, 65536)] == [State.WRONG, State.NOTE, State.OK]
    assert "LimitNOFILE" in judge_open_files(256).to_do


def test_locked_memory_matters_only_with_rdma() -> None:
    assert judge_memlock(64 << 10, has_rdma=False).state is State.OK
    assert "LimitMEMLOCK=infinity" in judge_memlock(64 << 10, has_rdma=True).to_do
    assert judge_memlock(resource.RLIM_INFINITY, has_rdma=True).state is State.OK


def test_a_kernel_without_what_leases_and_the_arena_need_is_wrong() -> None:
    assert judge_pidfd(False, False).state is State.WRONG
    assert judge_pidfd(True, False).state is State.OK
    assert judge_memfd(False).state is State.WRONG


def test_what_is_optional_is_a_note() -> None:
    assert judge_shared_memory(64 << 20).state is State.NOTE
    assert judge_shared_memory(None).state is State.NOTE
    assert judge_huge_pages({"HugePages_Total": 0}).state is State.NOTE
    assert judge_clock_sync(False).state is State.NOTE
    assert [judge_ptrace(scope).state for scope in (None, 0, 1)] == [State.NOTE, State.NOTE, State.OK]


def test_huge_pages_are_counted_in_bytes() -> None:
    assert (
        "1.0 GiB" in judge_huge_pages({"HugePages_Total": 1024, "HugePages_Free": 512, "Hugepagesize": 2 << 20}).found
    )


def test_a_disk_is_judged_by_direct_io_speed_and_room() -> None:
    def states(measured: Measured) -> list[State]:
        return [finding.state for finding in judge_disk(DISK, measured)]

    assert states(Measured(True, 1 << 40, 2e9, 3e9)) == [State.OK, State.OK]
    assert states(Measured(True, 1 << 40, 50e6, 3e9)) == [State.OK, State.NOTE]
    assert states(Measured(False, 1 << 40, 2e9, 3e9)) == [State.WRONG, State.OK]
    assert states(Measured(True, 1 << 20, 0, 0)) == [State.OK, State.NOTE]


def test_rdma_ports_are_read_and_a_link_that_is_down_is_named(tmp_path: Path) -> None:
    for port, state in (("1", "4: ACTIVE"), ("2", "1: DOWN")):
        (tmp_path / "mlx5_0/ports" / port).mkdir(parents=True)
        (tmp_path / "mlx5_0/ports" / port / "state").write_text(state + "\n")
    ports = rdma_ports(tmp_path)
    assert ports == {"mlx5_0/1": "4: ACTIVE", "mlx5_0/2": "1: DOWN"}
    assert judge_rdma(ports, has_pyverbs=True).to_do.startswith("mlx5_0/2")
    assert "python3-pyverbs" in judge_rdma({"mlx5_0/1": "4: ACTIVE"}, has_pyverbs=False).to_do
    assert judge_rdma({}, has_pyverbs=False).state is State.OK


@pytest.mark.parametrize(
    ("version", "state"), [((3, 10, 9), State.WRONG), ((3, 11, 0), State.OK), ((3, 14, 0), State.WRONG)]
)
def test_python_must_be_of_a_supported_version(version: tuple[int, ...], state: State) -> None:
    assert judge_python(version, ">=3.11,<3.14").state is state


def test_libraries_that_are_missing_or_old_are_named() -> None:
    found = judge_packages(
        [Package("numpy", "2.0", "1.26.4"), Package("uvloop", "0.21", ""), Package("rich", "13.9", "15.0")]
    )
    assert found.state is State.WRONG
    assert "numpy 1.26.4 (needs 2.0)" in found.found and "no uvloop" in found.found and "rich" not in found.found


def test_a_daemon_of_another_version_is_wrong() -> None:
    assert judge_daemon("/s", "0.1.0", "0.2.0", ready=True).state is State.WRONG
    assert judge_daemon("/s", "0.2.0", "0.2.0", ready=False).state is State.NOTE


def test_meminfo_is_read_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable:   1024 kB\nHugePages_Total:       3\n")
    assert read_meminfo(tmp_path / "meminfo") == {"MemAvailable": 1 << 20, "HugePages_Total": 3}


def test_doctor_finds_the_daemon_and_measures_the_disk_and_leaves_nothing(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="mc-") as folder, DaemonProcess.start(Path(folder)) as daemon:
        result = CommandLine(daemon.socket_path).spawn("doctor", "--data", str(tmp_path))
    said = result.stdout.decode()
    assert "daemon" in said and "version" in said and "GB/s" in said, (said, result.stderr)
    assert result.returncode == ("\nwrong" in f"\n{said}")
    assert list(tmp_path.iterdir()) == []


def test_doctor_without_a_daemon_says_how_to_start_one_and_ends_with_1(tmp_path: Path) -> None:
    findings = CommandLine(tmp_path / "none").json("doctor", "--data", str(tmp_path), expect=1)
    (found,) = [finding for finding in findings if finding["what"] == "daemon"]
    assert found["state"] == "wrong" and "mooncask serve" in found["to_do"]


def test_a_data_folder_that_is_none_is_wrong(tmp_path: Path) -> None:
    findings = CommandLine("/none").json("doctor", "--no-daemon", "--data", str(tmp_path / "absent"), expect=1)
    assert findings[-1]["to_do"] == f"mkdir -p {tmp_path / 'absent'}"
