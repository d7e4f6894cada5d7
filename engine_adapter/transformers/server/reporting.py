"""Tells Conductors that this worker is there and how it is doing, and does what they ask for in return."""

import asyncio
import logging
import time
from collections.abc import Callable

import aiohttp
import msgspec

from mooncask.client.worker_api import GONE_SECONDS, REPORT_SECONDS, Leave, Registration, Reported
from mooncask.engine_adapter.transformers.server.roles import Roles

log = logging.getLogger(__name__)

CALL_SECONDS = 1.0
AGAIN_SECONDS_MAX = 2.0
"""Between two tries to reach a Conductor that is not there."""
STORE_SECONDS = 2.0
"""Between two registrations of a worker that has not found its daemon."""


class Reporter:
    """Reports to one Conductor until it is cancelled. `registration()` is asked, in a thread, each time it registers."""

    def __init__(self, conductor: str, secret: str, roles: Roles, registration: Callable[[], Registration]) -> None:
        self._base, self._secret = conductor.rstrip("/") + "/internal/v1", secret
        self._roles, self._registration = roles, registration
        self._me: Registration | None = None
        self._heard = time.monotonic()
        self._known = False
        self._registered = 0.0

    async def run(self) -> None:
        """Registers and reports. Says once when the Conductor goes and when it comes back."""
        headers = {"Authorization": f"Bearer {self._secret}"}
        limit = aiohttp.ClientTimeout(total=CALL_SECONDS)
        async with aiohttp.ClientSession(headers=headers, timeout=limit) as session:
            try:
                await self._report_until_cancelled(session)
            finally:
                await self._leave(session)

    async def _report_until_cancelled(self, session: aiohttp.ClientSession) -> None:
        pause = REPORT_SECONDS
        while True:
            try:
                if self._me is None or not self._known or self._is_incomplete():
                    self._me = await self._register(session)
                await self._report(session, self._me)
                pause = REPORT_SECONDS
            except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as exc:
                pause = min(AGAIN_SECONDS_MAX, pause * 2)
                self._not_heard(exc)
            await asyncio.sleep(pause)

    def _is_incomplete(self) -> bool:
        """There was no daemon: nothing matches until the Conductor knows the namespace."""
        return self._me is not None and self._me.hashing is None and time.monotonic() - self._registered > STORE_SECONDS

    async def _register(self, session: aiohttp.ClientSession) -> Registration:
        me = await asyncio.to_thread(self._registration)
        async with session.post(f"{self._base}/register", data=msgspec.json.encode(me)) as response:
            response.raise_for_status()
        self._known, self._registered = True, time.monotonic()
        log.info("registered with the Conductor at %s", self._base)
        return me

    async def _report(self, session: aiohttp.ClientSession, me: Registration) -> None:
        body = msgspec.json.encode(self._roles.report(me.name, me.incarnation))
        async with session.post(f"{self._base}/report", data=body) as response:
            response.raise_for_status()
            answer = msgspec.json.decode(await response.read(), type=Reported)
        self._heard = time.monotonic()
        self._known = answer.known
        for request in answer.cancel:
            self._roles.cancel(request)
        if answer.role is not None and answer.role is not self._roles.role:
            log.info("the role is %s from now on", answer.role)
            await asyncio.to_thread(self._roles.set, answer.role)

    def _not_heard(self, why: Exception) -> None:
        """A Conductor that is gone reads no answers: its requests are ended with their connections, and the rest here."""
        if self._known and time.monotonic() - self._heard > GONE_SECONDS:
            log.warning("no word from the Conductor at %s (%s); trying again", self._base, why or type(why).__name__)
            self._known = False

    async def _leave(self, session: aiohttp.ClientSession) -> None:
        me = self._me
        if not self._known or me is None:
            return
        body = msgspec.json.encode(Leave(name=me.name, incarnation=me.incarnation))
        try:
            async with asyncio.timeout(CALL_SECONDS), session.post(f"{self._base}/leave", data=body):
                log.info("left the Conductor at %s", self._base)
        except (aiohttp.ClientError, TimeoutError) as exc:
            log.info("could not say good-bye to %s: %s", self._base, exc)
