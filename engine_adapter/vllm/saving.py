"""One save, in a thread of its own: places reserved, blocks copied out of the engine's cache, committed.

The engine's blocks may become another request's: `revoke` returns when no byte of them will be read any more. It waits
for a copy under way (milliseconds), never for the daemon.
"""

import threading

import torch

from mooncask.client.reservations import Reservations
from mooncask.client.wire import BATCH_MAX, CommitState
from mooncask.engine_adapter.vllm.connection import StoreConnection
from mooncask.engine_adapter.vllm.counters import Counters
from mooncask.engine_adapter.vllm.kv_planes import KvPlanes
from mooncask.engine_adapter.vllm.messages import SavePlan
from mooncask.errors import MooncaskError


class Save:
    def __init__(self, plan: SavePlan, connection: StoreConnection, planes: KvPlanes, counters: Counters) -> None:
        self.plan = plan
        self._connection, self._planes, self._counters = connection, planes, counters
        self._copying = threading.Lock()
        self._revoked = False

    def revoke(self) -> None:
        """Blocks that were not copied yet are not saved."""
        with self._copying:
            self._revoked = True

    def run(self) -> None:
        """Raises nothing of Mooncask's: what is not saved is computed again, some day."""
        done = 0
        most = min(max(1, self._connection.settings.lease_bytes // self._planes.block_bytes), BATCH_MAX)
        try:
            while done < len(self.plan.keys) and not self._revoked and self._connection.has_room:
                stop = min(done + most, len(self.plan.keys))
                self._save(done, stop)
                done = stop
            self._connection.worked()
        except MooncaskError as error:
            self._connection.fault("save", error)
        self._counters.add("dropped_blocks", len(self.plan.keys) - done)

    def _save(self, start: int, stop: int) -> None:
        client, (handle,) = self._connection.open()
        count, depth = stop - start, self.plan.first + start
        with client.reserve(
            handle,
            self.plan.keys[start:stop],
            [self._planes.block_bytes] * count,
            parents=self.plan.parents[start:stop],
            depths=range(depth, depth + count),
            tokens=[self._connection.shards[0].block_tokens] * count,
        ) as reserved:
            if not self._copy(reserved, self.plan.block_ids[start:stop]):
                self._counters.add("dropped_blocks", count)
                return
            states = reserved.commit(token_ids=self.plan.published_tokens[start:stop] or None)
        new = sum(state in (CommitState.PUBLISHED, CommitState.DURABLE) for state in states)
        self._counters.add("saved_blocks", new)
        self._counters.add("known_blocks", count - new)

    def _copy(self, reserved: Reservations, block_ids: list[int]) -> bool:
        """False when the save was revoked before or meanwhile: then nothing of it is committed."""
        for block_id, slot in zip(block_ids, reserved, strict=True):
            if slot is None:
                continue
            with self._copying:
                if self._revoked:
                    return False
                self._planes.save([block_id], slot.torch(torch.uint8))
        return True
