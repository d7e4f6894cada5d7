"""After a fault of the index: it is closed and opened anew with back-off; the tier is read-only meanwhile."""

import asyncio
import logging
from pathlib import Path

from mooncask.tiers.nvme.file_layer import FileLayer
from mooncask.tiers.nvme.folder import INDEX
from mooncask.tiers.nvme.group_commit import GroupCommit
from mooncask.tiers.nvme.index import IndexFault, IndexUnreadable
from mooncask.tiers.nvme.workers import Workers
from mooncask.tiers.off_loop import run_off_loop

log = logging.getLogger(__name__)

FIRST_SECONDS = 1.0
MAX_SECONDS = 60.0


class IndexReopener:
    """At most one attempt at a time. For the event loop's thread."""

    def __init__(self, folder: Path, files: FileLayer, workers: Workers, group: GroupCommit) -> None:
        self._path = folder / INDEX
        self._files = files
        self._workers = workers
        self._group = group
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        pause = FIRST_SECONDS
        while True:
            await asyncio.sleep(pause)
            try:
                await run_off_loop(self._workers.index, self._open_anew)
                break
            except (IndexFault, IndexUnreadable, OSError) as exc:
                pause = min(pause * 2, MAX_SECONDS)
                log.error("nvme tier: the index can't be opened (%s); next try in %.0f s", exc, pause)
        log.warning("nvme tier: the index is open again; the tier takes writes")
        self._group.recovered()

    def _open_anew(self) -> None:
        try:
            self._group.index.close()
        except IndexFault as exc:
            log.warning("nvme tier: closing the broken index: %s", exc)
        self._group.index = self._files.open_index(self._path)
