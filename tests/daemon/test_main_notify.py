"""What systemd is told: ready, reloading, stopping, more time, and that the event loop still turns."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from daemon_process import DaemonProcess
from service_manager import ServiceManager

from mooncask.client.local import LocalClient
from mooncask.daemon.notify import Notifier


@pytest.mark.parametrize("abstract", [False, True])
def test_ready_is_told_once_the_listeners_are_up_and_stopping_before_they_go(tmp_path: Path, abstract: bool) -> None:
    with ServiceManager(abstract) as manager, DaemonProcess(tmp_path) as daemon:
        daemon.environment = manager.environment
        daemon.run()
        before = manager.wait_for("READY=1")
        assert all(message[0].startswith("EXTEND_TIMEOUT_USEC=") for message in before[:-1]), before
        LocalClient.connect(daemon.socket_path).close()
        assert [line for line in before[-1] if daemon.socket_path in line and daemon.http_address in line], before[-1]
        assert daemon.stop() == 0
        stopping = manager.wait_for("STOPPING=1")[-1]
        assert "EXTEND_TIMEOUT_USEC=45000000" in stopping, "30 s of flush and what the listeners may take"


def test_a_daemon_that_opens_a_store_asks_for_more_time(tmp_path: Path) -> None:
    with ServiceManager() as manager, DaemonProcess.start(tmp_path, environment=manager.environment):
        assert manager.next() == ["EXTEND_TIMEOUT_USEC=30000000"]


def test_the_watchdog_is_fed_twice_in_its_time_until_the_end(tmp_path: Path) -> None:
    with (
        ServiceManager(watchdog_seconds=0.4) as manager,
        DaemonProcess.start(tmp_path, environment=manager.environment) as daemon,
    ):
        manager.wait_for("READY=1")
        manager.wait_for("WATCHDOG=1")
        fed = []
        for _ in range(4):
            manager.wait_for("WATCHDOG=1")
            fed.append(time.monotonic())
        assert fed[-1] - fed[0] < 3 * 0.4, "later than the watchdog would bite"
        daemon.freeze()
        with pytest.raises(TimeoutError):
            for _ in range(20):  # what was sent before it froze
                manager.next(1.0)
        daemon.thaw()
        manager.wait_for("WATCHDOG=1")


async def test_a_loop_that_hangs_feeds_no_watchdog() -> None:
    with ServiceManager(watchdog_seconds=0.02) as manager:
        notifier = Notifier.from_environment(manager.environment, os.getpid())
        notifier.ready("serving")
        task = asyncio.create_task(notifier.beat())
        try:
            assert await asyncio.to_thread(manager.wait_for, "WATCHDOG=1")
            manager.sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                while True:
                    manager.sock.recv(100)
            time.sleep(0.2)  # noqa: ASYNC251  # the fault: something blocks the loop
            with pytest.raises(BlockingIOError):
                manager.sock.recv(100)
            assert await asyncio.to_thread(manager.wait_for, "WATCHDOG=1"), "it turns again"
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_without_a_watchdog_the_beat_ends_at_ready() -> None:
    with ServiceManager() as manager:
        notifier = Notifier.from_environment(manager.environment, os.getpid())
        notifier.ready("serving")
        await notifier.beat()
        assert manager.next() == ["READY=1", "STATUS=serving"]


@pytest.mark.parametrize(
    "environment",
    [
        {"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "0"},
        {},
    ],
)
async def test_a_watchdog_of_another_process_or_none_is_not_fed(environment: dict[str, str]) -> None:
    notifier = Notifier.from_environment({**environment, "NOTIFY_SOCKET": "@nobody-listens"}, os.getpid())
    notifier.ready("serving")
    await asyncio.wait_for(notifier.beat(), 5.0)


def test_a_manager_that_is_gone_does_no_harm(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path, environment={"NOTIFY_SOCKET": str(tmp_path / "none")}) as daemon:
        LocalClient.connect(daemon.socket_path).close()
        assert daemon.stop() == 0


def test_a_reload_is_told_with_its_time_and_its_outcome(tmp_path: Path) -> None:
    with (
        ServiceManager() as manager,
        DaemonProcess.start(tmp_path, {"log.level": "info"}, manager.environment) as daemon,
    ):
        manager.wait_for("READY=1")
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGHUP)
        first, last = manager.wait_for("READY=1")
        assert first[0] == "RELOADING=1"
        assert int(first[1].removeprefix("MONOTONIC_USEC=")) >= before
        assert last == ["READY=1", "STATUS=reloaded: no key has changed"]
