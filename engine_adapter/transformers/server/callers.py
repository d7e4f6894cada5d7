"""Conductors whose calls run here. One that is killed breaks its connections, and its calls end with them; one that is cut off,
or frozen, keeps them: its calls are ended when it has answered no report for so long that it is taken to be gone.

Calls that do not say whose they are are left alone. Belongs to one event loop.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

TICK_SECONDS = 0.25
"""How often it is looked who is silent."""


@dataclass(slots=True)
class _Caller:
    silent_seconds: float = 0.0
    calls: dict[int, Callable[[], None]] = field(default_factory=dict)


class Callers:
    """By what each Conductor calls itself, as long as it has calls here."""

    def __init__(self, gone_seconds: float) -> None:
        self._gone_seconds = gone_seconds
        self._callers: dict[str, _Caller] = {}
        self._number = itertools.count()

    def heard(self, conductor: str) -> None:
        """It has answered a report."""
        if (caller := self._callers.get(conductor)) is not None:
            caller.silent_seconds = 0.0

    @contextmanager
    def call(self, conductor: str, end: Callable[[], None]) -> Iterator[None]:
        """A call of this Conductor (empty: of nobody that is known) runs inside; `end` is called when it is taken to be gone."""
        if not conductor:
            yield
            return
        self.heard(conductor)  # who calls is there
        number = next(self._number)
        caller = self._callers.setdefault(conductor, _Caller())
        caller.calls[number] = end
        try:
            yield
        finally:
            del caller.calls[number]
            if not caller.calls and self._callers.get(conductor) is caller:
                del self._callers[conductor]

    def tick(self, seconds: float) -> None:
        """So much time has passed. What is ended leaves with its handler."""
        for name, caller in self._callers.items():
            before = caller.silent_seconds
            caller.silent_seconds += seconds
            if before < self._gone_seconds <= caller.silent_seconds:
                log.warning(
                    "Conductor %s has not been heard of for %.1f s: its %d calls are ended",
                    name,
                    caller.silent_seconds,
                    len(caller.calls),
                )
                for end in list(caller.calls.values()):
                    end()

    async def watch(self) -> None:
        """Until it is cancelled. Time in which this process itself stood still is nobody's silence."""
        loop = asyncio.get_running_loop()
        before = loop.time()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = loop.time()
            self.tick(min(now - before, 2 * TICK_SECONDS))
            before = now
