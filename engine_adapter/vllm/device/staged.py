"""KV on a GPU: through pinned host memory, on two streams beside the one that computes, so that copies overlap computing.

save:  compute stream  ... kernels that write the block | mark
       save stream     wait(mark) | block -> slot | event
       worker thread                                wait(event) | slot -> arena | (commit)
load:  compute stream  ... zeroing, kernels of the block's last owner | mark
       worker thread   arena -> slot |
       load stream                   wait(mark) | slot -> block | event
       worker thread                                           wait(event) | (reported)

Why each of these is enough:

- A save's mark is made behind the step's kernels, by the thread that launched them, so the bytes are the step's. Until the
  save is over the engine keeps the block as it is: a full block is not written again, and it is freed for others only when
  the worker says that nothing reads it (`worker.py`, `Save.revoke`).
- A load's mark is made by the thread that launches kernels, when the block has been given to the request. Kernels that were
  launched earlier may still write to it: a step that the last owner was in although it had ended, which happens when steps
  are planned ahead, and the zeroing of new blocks. Later ones don't: the request is not scheduled before the load is
  reported. That a worker thread, not a stream, waits for the load's event is what makes it reported late enough: whatever is
  launched after the report begins after the copy's end.
- A slot belongs to one copy until that copy's event was waited for (`lane.py`).
- After an error the stream is waited for before the blocks are called failed: no late copy lands in a block that is computed
  anew. When even that fails, `check` says so, and the engine must not go on.

Not here: CUDA itself (`cuda.py`). Blocks are copied piece by piece, one call each; an engine whose layers lie together in a
block (vLLM's BLHNC layout) has one piece a block.
"""

from collections.abc import Sequence

from mooncask.engine_adapter.vllm.device.accelerator import Accelerator, Pair
from mooncask.engine_adapter.vllm.device.copies import BlockCopy, Mark, check_whole
from mooncask.engine_adapter.vllm.device.lane import Flight, Lane
from mooncask.engine_adapter.vllm.device.staging import slot_stride
from mooncask.errors import ConfigError, DeviceFault

TOGETHER_MAX = 8
"""Blocks of one part of a save: enough to keep the device copying, and soon over when the save is called off."""


class StagedCopies:
    """Implements `BlockCopies`."""

    def __init__(self, accelerator: Accelerator, block_bytes: int, pinned_bytes: int) -> None:
        """Half of `pinned_bytes` is for each direction. Raises ConfigError when a block of `block_bytes` does not fit in
        that, DeviceFault."""
        slots = pinned_bytes // 2 // slot_stride(block_bytes)
        if not slots:
            least = 2 * slot_stride(block_bytes)
            raise ConfigError(
                "kv_connector_extra_config.pinned_bytes", str(pinned_bytes), f"at least {least}: a block each way"
            )
        self._accelerator = accelerator
        self._inward = Lane(accelerator, "to the device", block_bytes, slots)
        self._outward = Lane(accelerator, "from the device", block_bytes, slots)
        self.blocks_at_once = min(slots, TOGETHER_MAX)

    def mark(self) -> Mark:
        return self._accelerator.mark()

    def load(self, copies: Sequence[BlockCopy], after: Mark) -> None:
        with Flight(self._inward) as flight:
            if after is not None:
                self._inward.stream.wait(after)
            for copy in copies:
                slot = flight.slot()[: copy.payload.numel()]
                slot.copy_(copy.payload)
                flight.launch([Pair(piece.data, piece.part_of(slot)) for piece in copy.pieces])

    def save(self, copies: Sequence[BlockCopy], after: Mark) -> None:
        check_whole(copies)
        with Flight(self._outward) as flight:
            if after is not None:
                self._outward.stream.wait(after)
            for copy in copies:
                slot = flight.slot()
                flight.launch([Pair(piece.part_of(slot), piece.data) for piece in copy.pieces], copy.payload)

    def check(self) -> None:
        why = self._inward.ring.broken
        if why:
            raise DeviceFault(
                self._accelerator.name, "copies into its memory may still be under way, so the engine must end", why
            )

    def close(self) -> None:
        for lane in (self._inward, self._outward):
            lane.drain()
