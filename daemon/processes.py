"""The processes behind the connections: what they hold is theirs until they die, whatever happens to a connection.

A process names itself by a random token, the same for all its connections. Its death is noticed by a pidfd, which the
kernel makes readable after the process's memory is gone: nothing can read or write the arena through it any more.
"""

import asyncio
import hmac
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mooncask.daemon.peer import Peer
from mooncask.daemon.service import Writing
from mooncask.errors import AccessDenied

if TYPE_CHECKING:
    from mooncask.daemon.session import Session

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Process:
    """One client process. `parked` are reservations of cut connections that it may still be writing into."""

    token: bytes
    peer: Peer
    tenant: str
    sessions: "set[Session]" = field(default_factory=set)
    parked: dict[int, Writing] = field(default_factory=dict)
    dead: bool = False

    @property
    def shares_memory(self) -> bool:
        return self.peer.pidfd is not None


class ProcessTable:
    """All live processes by token. `on_death(process)` is called once for each that dies."""

    def __init__(self, on_death: Callable[[Process], None]) -> None:
        self._processes: dict[bytes, Process] = {}
        self._on_death = on_death

    def __len__(self) -> int:
        return len(self._processes)

    def __iter__(self) -> Iterator[Process]:
        return iter(self._processes.values())

    def enter(self, token: bytes, peer: Peer, tenant: str) -> Process:
        """The process of this token; takes `peer.pidfd` over. Raises AccessDenied when the token is another process's."""
        process = self._processes.get(token)
        if process is None:
            process = self._processes[token] = Process(token, peer, tenant)
            self._watch(process)
            return process
        if peer.pidfd is not None:
            os.close(peer.pidfd)
        same = (process.peer.pid, process.peer.uid) == (peer.pid, peer.uid)
        if not same or not hmac.compare_digest(process.token, token):
            raise AccessDenied("this process token belongs to another process; draw a fresh one after a fork")
        return process

    def leave(self, process: Process) -> None:
        """Forget a living process that holds nothing any more."""
        if not process.dead and self._processes.pop(process.token, None) is not None:
            self._unwatch(process)

    def close(self) -> None:
        for process in self._processes.values():
            self._unwatch(process)
        self._processes.clear()

    def _watch(self, process: Process) -> None:
        if process.peer.pidfd is not None:
            asyncio.get_running_loop().add_reader(process.peer.pidfd, self._died, process)

    def _unwatch(self, process: Process) -> None:
        if process.peer.pidfd is not None:
            asyncio.get_running_loop().remove_reader(process.peer.pidfd)
            os.close(process.peer.pidfd)

    def _died(self, process: Process) -> None:
        self._unwatch(process)
        del self._processes[process.token]
        process.dead = True
        log.info("process %d (uid %d) is gone", process.peer.pid, process.peer.uid)
        self._on_death(process)
