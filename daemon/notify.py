"""Tells the service manager how the daemon is: systemd's notification protocol, which is one datagram a message.

Covers what a unit of Type=notify wants: ready, reloading, stopping, a status line, more time, and the watchdog. Nothing here
is needed without a service manager: with NOTIFY_SOCKET unset every call does nothing.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Self

log = logging.getLogger(__name__)

START_BEAT_SECONDS = 5.0
START_EXTENSION_SECONDS = 30.0
"""A large data folder may take longer to open than TimeoutStartSec allows; while the event loop turns, it is asked for more."""


class Notifier:
    """Where to send what. Its calls never block and never raise: a manager that has gone is no reason to stop serving."""

    def __init__(self, address: str = "", watchdog_seconds: float = 0.0) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address  # "@" stands for an abstract name
        self._watchdog_seconds = watchdog_seconds
        self._started = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], pid: int) -> Self:
        """By NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID; a number that is none counts as unset."""
        microseconds, of_pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", str(pid))
        watched = microseconds.isascii() and microseconds.isdigit() and of_pid == str(pid)
        return cls(environment.get("NOTIFY_SOCKET", ""), int(microseconds) / 1e6 if watched else 0.0)

    def tell(self, *states: str) -> None:
        """Sends `NAME=value` lines as one message."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(states).encode(), self._address)
        except OSError as error:
            log.debug("the service manager was not told %s: %s", states[0], error)

    def ready(self, status: str) -> None:
        """After the start, and after each reload, refused or not."""
        self._started = True
        self.tell("READY=1", _status(status))

    def reloading(self) -> None:
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, seconds_max: float) -> None:
        """`seconds_max`: how long that may take; the manager's own limit is extended if it is shorter."""
        self.tell("STOPPING=1", _extension(seconds_max), _status("flushing to NVMe"))

    async def beat(self) -> None:
        """Shows for ever that the event loop turns: it asks for time until `ready`, then feeds the watchdog, if there is one.

        The loop itself does it, at half of the watchdog's time: a thread would go on telling that of a loop that hangs.
        """
        while not self._started:
            self.tell(_extension(START_EXTENSION_SECONDS))
            await asyncio.sleep(min(START_BEAT_SECONDS, self._watchdog_seconds / 2 or START_BEAT_SECONDS))
        while self._watchdog_seconds:
            self.tell("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_seconds / 2)


def from_process() -> Notifier:
    """For this very process."""
    return Notifier.from_environment(os.environ, os.getpid())


def _extension(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}"


def _status(text: str) -> str:
    return "STATUS=" + " ".join(text.split())
