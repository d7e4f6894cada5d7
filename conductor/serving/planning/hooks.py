"""Tells whoever scales the fleet what is recommended: a command that gets it as JSON on stdin, or a webhook that gets it posted.

One at a time, each within its time; nobody waits for it, and what it answers changes nothing here.
"""

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field

import aiohttp

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ScaleHook:
    """`command` in words, or empty; `webhook` a URL, or empty. Belongs to one event loop."""

    command: list[str]
    webhook: str
    seconds: float
    last: str = ""
    """How the last call ended."""
    skipped: int = 0
    """Recommendations that were not told, since the hook was still busy with an earlier one."""
    _running: "asyncio.Task[None] | None" = field(default=None)

    def tell(self, body: bytes) -> None:
        """Begins, and returns at once."""
        if not self.command and not self.webhook:
            return
        if self._running is not None and not self._running.done():
            self.skipped += 1
            return
        self._running = asyncio.create_task(self._tell(body))

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _tell(self, body: bytes) -> None:
        try:
            async with asyncio.timeout(self.seconds):
                self.last = await self._run(body) if self.command else await self._post(body)
        except TimeoutError:
            self.last = f"not done within {self.seconds:g} s"
        except (OSError, ValueError, aiohttp.ClientError) as exc:
            self.last = f"{type(exc).__name__}: {exc}"
        if self.last != "done":
            log.warning("the scale hook failed: %s", self.last)

    async def _run(self, body: bytes) -> str:
        pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*self.command, stdin=pipe, stdout=nothing, stderr=nothing)
        try:
            assert process.stdin is not None
            with contextlib.suppress(ConnectionError):  # a command need not read it
                process.stdin.write(body)
                await process.stdin.drain()
                process.stdin.close()
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return "done" if status == 0 else f"exit status {status}"

    async def _post(self, body: bytes) -> str:
        headers = {"Content-Type": "application/json"}
        async with aiohttp.ClientSession() as session, session.post(self.webhook, data=body, headers=headers) as answer:
            return "done" if answer.status < 300 else f"status {answer.status}"
