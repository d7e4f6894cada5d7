"""Workers as real child processes of a test, ended by pid and never left behind."""

import asyncio
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

_SCRIPT = Path(__file__).parent / "worker_child.py"
SECONDS = 20.0


class Worker:
    """`said` is what it printed once it had done its action."""

    def __init__(self, process: asyncio.subprocess.Process, said: dict[str, Any]) -> None:
        self.process, self.said = process, said

    async def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def worker(
    path: str, action: str, namespace: str, *numbers: int, uid: int | None = None, under: tuple[str, ...] = ()
) -> AsyncIterator[Worker]:
    """A worker that has done `action` with the keys of these numbers, as `uid`, started by the command `under`."""
    process = await asyncio.create_subprocess_exec(
        *under,
        sys.executable,
        str(_SCRIPT),
        path,
        secrets.token_hex(16),
        str(os.getuid() if uid is None else uid),
        action,
        namespace,
        *map(str, numbers),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), SECONDS)
        yield Worker(process, json.loads(line or b"{}"))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        # The transports are closed by the loop's next turn; without it their pipes outlive the test.
        await asyncio.sleep(0)


async def until(condition: Any) -> None:
    """Returns when `condition()` holds: looked at as often as the loop turns, for what another process causes."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110  # what it waits for has no event here: another process causes it
            await asyncio.sleep(0.001)
