"""One save, in a thread of its own: places reserved, blocks copied out of the engine's cache, committed.

The engine's blocks may become another request's: `revoke` and `capture` return when no byte of those that go will be read
any more. They wait for a copy under way (milliseconds; on a GPU also for the step that computes it), never for the daemon.
"""

import threading

import torch

from mooncask.client.blocks import Slot
from mooncask.client.reservations import Reservations
from mooncask.client.wire import BATCH_MAX, CommitState
from mooncask.engine_adapter.vllm.device.copies import BlockCopy, Mark
from mooncask.engine_adapter.vllm.messages import SavePlan
from mooncask.engine_adapter.vllm.ways import Ways
from mooncask.errors import DeviceFault, MooncaskError


class CaptureRoom:
    """How much memory blocks may take that the engine takes back before they are saved. Any thread may use it."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """False when there is no room for `size` bytes more."""
        with self._lock:
            if self._left < size:
                return False
            self._left -= size
            return True

    def give_back(self, size: int) -> None:
        with self._lock:
            self._left += size


class Save:
    def __init__(self, plan: SavePlan, ways: Ways, room: CaptureRoom, after: Mark) -> None:
        """`after`: what was launched before computes the blocks."""
        self.plan = plan
        self._ways, self._room, self._after = ways, room, after
        self._copying = threading.Lock()
        self._copied = 0
        """Blocks that are out of the engine's cache, from the first on."""
        self._captured: dict[int, torch.Tensor] = {}
        self._stop = len(plan.keys)
        """Blocks from this one on are not saved: they are gone, or were given up."""

    def revoke(self) -> None:
        """Blocks that were not copied yet are not saved."""
        with self._copying:
            self._stop = 0

    def capture(self, kept: int) -> None:
        """Blocks of the chain before `kept` are somebody else's when this returns. They are copied aside; what there is no room
        for is not saved, and neither is what follows it, which nobody would find."""
        with self._copying:
            for index in range(self._copied, min(self._stop, kept - self.plan.first)):
                if index in self._captured:
                    continue
                if not self._room.take(self._ways.planes.block_bytes):
                    self._stop = index
                    return
                aside = torch.empty(self._ways.planes.block_bytes, dtype=torch.uint8)
                try:
                    self._ways.copies.save([self._ways.planes.copy(self.plan.places[index], aside)], self._after)
                except DeviceFault as error:
                    self._room.give_back(self._ways.planes.block_bytes)
                    self._ways.connection.fault("save", error)
                    self._stop = index
                    return
                self._captured[index] = aside
                self._ways.counters.add("captured_blocks")

    def run(self) -> None:
        """Raises nothing of Mooncask's: what is not saved is computed again, some day."""
        done = 0
        most = min(max(1, self._ways.connection.settings.lease_bytes // self._ways.planes.block_bytes), BATCH_MAX)
        try:
            while done < self._stop and self._ways.connection.has_room:
                stop = min(done + most, self._stop)
                if not self._save(done, stop):
                    break
                done = stop
            self._ways.connection.worked()
        except MooncaskError as error:
            self._ways.connection.fault("save", error)
        finally:
            self._end()
        self._ways.counters.add("dropped_blocks", len(self.plan.keys) - done)

    def _end(self) -> None:
        """Nothing is captured from now on, and nothing kept."""
        with self._copying:
            self._stop = 0
            self._room.give_back(len(self._captured) * self._ways.planes.block_bytes)
            self._captured.clear()

    def _save(self, start: int, stop: int) -> bool:
        """False when blocks went before they were copied: then nothing of these is committed."""
        client, (handle,) = self._ways.connection.open()
        count, depth = stop - start, self.plan.first + start
        with client.reserve(
            handle,
            self.plan.keys[start:stop],
            [self._ways.planes.block_bytes] * count,
            parents=self.plan.parents[start:stop],
            depths=range(depth, depth + count),
            tokens=[self._ways.connection.shards[0].block_tokens] * count,
        ) as reserved:
            if not self._copy(reserved, start):
                return False
            states = reserved.commit(token_ids=self.plan.published_tokens[start:stop] or None)
        new = sum(state in (CommitState.PUBLISHED, CommitState.DURABLE) for state in states)
        self._ways.counters.add("saved_blocks", new)
        self._ways.counters.add("known_blocks", count - new)
        return True

    def _copy(self, reserved: Reservations, start: int) -> bool:
        """False when blocks were revoked, or went, before or meanwhile."""
        slots, size = list(reserved), self._ways.copies.blocks_at_once
        return all(self._copy_part(slots[i : i + size], start + i) for i in range(0, len(slots), size))

    def _copy_part(self, slots: list[Slot | None], start: int) -> bool:
        with self._copying:
            if start + len(slots) > self._stop:
                return False
            copies: list[BlockCopy] = []
            for index, slot in enumerate(slots, start):
                captured = self._captured.pop(index, None)
                if captured is not None:
                    self._room.give_back(self._ways.planes.block_bytes)
                if slot is not None and captured is not None:
                    slot.torch(torch.uint8).copy_(captured)
                elif slot is not None:
                    copies.append(self._ways.planes.copy(self.plan.places[index], slot.torch(torch.uint8)))
            self._ways.copies.save(copies, self._after)
            self._copied = start + len(slots)
        return True
