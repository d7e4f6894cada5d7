"""Signs of life in the bucket, and who looks after the packs of nodes that give none any more: the one whose conditional put of a
claim succeeded, as long as it renews it. All times are of the bucket's own clock, so that no node's clock matters.
"""

import logging
import time

from mooncask.daemon.cold.bucket import BucketFault
from mooncask.daemon.cold.choice import dead_nodes
from mooncask.daemon.cold.names import ALIVE, CLAIMS, Run, parse_run
from mooncask.daemon.cold.world import World

log = logging.getLogger(__name__)

BEATS = 24
"""Signs of life in the time after which a node counts as dead."""
BEAT_SECONDS_MAX = 600.0
CLAIMS_AT_ONCE = 16
READ_SECONDS = 10.0


class Owning:
    """Of one daemon; `beat` is called by one task."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._next_beat = 0.0
        self._first_beat = 0.0
        """Bucket's clock."""
        self.interval_seconds = min(BEAT_SECONDS_MAX, world.section.dead_after / BEATS)

    async def beat(self) -> None:
        """When it is time. Raises BucketFault."""
        if time.monotonic() < self._next_beat:
            return
        world = self._world
        path = f"{ALIVE}{world.run.folder}"
        await world.bucket.put(path, world.service.config.node.name.encode())
        version = await world.bucket.version(path)
        if version is None:
            raise BucketFault(f"{path} was written and is not there")
        if not self._first_beat:
            self._first_beat = version.modified
            await world.bucket.delete(f"{CLAIMS}{world.run.node}")  # who claimed this node's packs finds that out
        alive = await self._alive()
        await self._renew(alive)
        for node in dead_nodes(alive, version.modified, world.section.dead_after)[:CLAIMS_AT_ONCE]:
            if node not in world.owned and await self._claim(node, version.modified):
                world.owned.add(node)
                log.info("node %s is dead: its packs in the bucket are looked after from here", node)
        self._next_beat = time.monotonic() + self.interval_seconds

    async def _alive(self) -> dict[str, float]:
        """Other nodes and their last signs of life. Those of earlier runs of this one go."""
        world, alive = self._world, dict[str, float]()
        earlier: list[tuple[Run, float]] = []
        async for found in world.bucket.list(ALIVE):
            run = parse_run(found.path, ALIVE)
            if run is not None and run.node != world.run.node:
                alive[run.node] = max(found.modified, alive.get(run.node, 0.0))
            elif run is not None and run != world.run:
                earlier.append((run, found.modified))
        for run, modified in earlier:
            if modified > self._first_beat + 2 * self.interval_seconds + 1:
                if world.run.node in world.owned:
                    log.error("another node has the name of this one (node.name): nothing is collected for it here")
                world.owned.discard(world.run.node)
            else:
                await world.bucket.delete(f"{ALIVE}{run.folder}")
        return alive

    async def _renew(self, alive: dict[str, float]) -> None:
        """Claims that this node has and may keep."""
        world = self._world
        for node in sorted(world.owned - {world.run.node}):
            path = f"{CLAIMS}{node}"
            version = await world.bucket.version(path)
            owner = await world.bucket.get(path, READ_SECONDS) if version is not None else None
            if (
                version is None
                or owner is None
                or bytes(owner) != world.run.incarnation
                or not await world.bucket.put(path, world.run.incarnation, version=version)
            ):
                world.owned.discard(node)
        world.owned &= {world.run.node, *alive}

    async def _claim(self, node: str, bucket_seconds: float) -> bool:
        """Whether it is this node's now. One whose claimant is dead too may be taken over."""
        world, path = self._world, f"{CLAIMS}{node}"
        if await world.bucket.put(path, world.run.incarnation, only_new=True):
            return True
        version = await world.bucket.version(path)
        if version is None or bucket_seconds - version.modified <= world.section.dead_after:
            return False
        return await world.bucket.put(path, world.run.incarnation, version=version)
