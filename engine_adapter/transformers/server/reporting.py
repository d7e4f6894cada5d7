"""Tells Conductors that this worker is there and how it is doing, and does what they ask for in return."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import msgspec

from mooncask.client.worker_api import GONE_SECONDS, REPORT_SECONDS, Leave, Registration, Reported
from mooncask.engine_adapter.transformers.server.roles import Roles

log = logging.getLogger(__name__)

ANSWER_SECONDS = GONE_SECONDS
"""A Conductor that takes nearly as long is slow, and not gone: an answer that nobody waited for would have said so."""
LEAVE_SECONDS = 1.0
AGAIN_SECONDS_MAX = 2.0
"""Between two tries to reach a Conductor that is not there."""
STORE_SECONDS = 2.0
"""Between two registrations of a worker that has not found its daemon."""


class Reporter:
    """Reports to one Conductor until it is cancelled. `registration()` is asked, in a thread, each time it registers;
    `heard(name)` is told of each answer."""

    def __init__(
        self,
        conductor: str,
        secret: str,
        roles: Roles,
        registration: Callable[[], Registration],
        heard: Callable[[str], None],
    ) -> None:
        self._tell_heard = heard
        self._base, self._secret = conductor.rstrip("/") + "/internal/v1", secret
        self._roles, self._registration = roles, registration
        self._me: Registration | None = None
        self._heard = time.monotonic()
        self._known = False
        self._registered = 0.0
        self._refusal = ""
        self._role = roles.role
        self._beside: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Registers and reports. Says once when the Conductor goes and when it comes back."""
        headers = {"Authorization": f"Bearer {self._secret}"}
        limit = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        async with aiohttp.ClientSession(headers=headers, timeout=limit) as session:
            try:
                await self._report_until_cancelled(session)
            finally:
                for task in self._beside:
                    task.cancel()
                await self._leave(session)

    async def _report_until_cancelled(self, session: aiohttp.ClientSession) -> None:
        pause = REPORT_SECONDS
        while True:
            try:
                if self._me is None or not self._known:
                    await self._register(session)
                elif self._is_incomplete():
                    self._registered = time.monotonic()
                    self._do_beside(self._register(session))
                if self._me is not None and self._known:
                    await self._report(session, self._me)
                pause = REPORT_SECONDS
            except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as exc:
                self._not_heard(exc)
                pause = REPORT_SECONDS if self._known else min(AGAIN_SECONDS_MAX, pause * 2)
            except Exception:  # the top of this task: a worker that falls silent would be lost
                pause = AGAIN_SECONDS_MAX
                log.exception("telling the Conductor at %s failed", self._base)
            await asyncio.sleep(pause)

    def _do_beside(self, work: Coroutine[Any, Any, None]) -> None:
        """What takes long, beside the reports: who is silent is taken to be gone."""

        async def logged() -> None:
            try:
                await work
            except (aiohttp.ClientError, TimeoutError) as exc:
                log.info("could not tell the Conductor at %s: %r", self._base, exc)
            except Exception:
                log.exception("what the Conductor at %s wants could not be done", self._base)

        task = asyncio.create_task(logged())
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def _is_incomplete(self) -> bool:
        """There was no daemon: nothing matches until the Conductor knows the namespace."""
        return self._me is not None and self._me.hashing is None and time.monotonic() - self._registered > STORE_SECONDS

    async def _register(self, session: aiohttp.ClientSession) -> None:
        me = await asyncio.to_thread(self._registration)
        async with session.post(f"{self._base}/register", data=msgspec.json.encode(me)) as response:
            if response.status != 200:
                self._refused(f"{response.status} {(await response.text())[:500]}")
                return
        self._known, self._registered, self._heard, self._me = True, time.monotonic(), time.monotonic(), me
        self._refusal = ""
        log.info("registered with the Conductor at %s", self._base)

    def _refused(self, why: str) -> None:
        if why != self._refusal:
            log.error("the Conductor at %s does not take this worker: %s", self._base, why)
        self._refusal = why

    async def _report(self, session: aiohttp.ClientSession, me: Registration) -> None:
        body = msgspec.json.encode(self._roles.report(me.name, me.incarnation))
        async with session.post(f"{self._base}/report", data=body) as response:
            response.raise_for_status()
            answer = msgspec.json.decode(await response.read(), type=Reported)
        self._heard = time.monotonic()
        self._tell_heard(answer.conductor)
        self._known = answer.known
        for request in answer.cancel:
            self._roles.cancel(request)
        if answer.role is not None and answer.role not in (self._roles.role, self._role):
            log.info("the role is %s from now on", answer.role)
            self._do_beside(asyncio.to_thread(self._roles.set, answer.role))
        self._role = answer.role or self._roles.role

    def _not_heard(self, why: Exception) -> None:
        """It may be gone. What it has called for here is ended by `callers.py`, or with its connections."""
        if self._known and time.monotonic() - self._heard > GONE_SECONDS:
            log.warning("no word from the Conductor at %s (%s); trying again", self._base, why or type(why).__name__)
            self._known = False

    async def _leave(self, session: aiohttp.ClientSession) -> None:
        me = self._me
        if not self._known or me is None:
            return
        body = msgspec.json.encode(Leave(name=me.name, incarnation=me.incarnation))
        try:
            async with asyncio.timeout(LEAVE_SECONDS), session.post(f"{self._base}/leave", data=body):
                log.info("left the Conductor at %s", self._base)
        except (aiohttp.ClientError, TimeoutError) as exc:
            log.info("could not say good-bye to %s: %s", self._base, exc)
