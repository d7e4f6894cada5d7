"""One load, in a thread of its own: leases adopted or made, blocks copied into the engine's cache, in order.

Whatever goes wrong ends it: the blocks that were not copied are reported and computed, and no call lasts beyond the
load's deadline. A daemon that dies in mid-copy takes nothing away: the memory stays mapped while it is read.
Not here: loads within a step (`layer_loading.py`).
"""

import time
from collections.abc import Iterable, Sequence

import torch

from mooncask.client.blocks import Block, Blocks
from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.engine_adapter.vllm.device.copies import BlockCopy, Mark
from mooncask.engine_adapter.vllm.messages import LoadDone, LoadPlan
from mooncask.engine_adapter.vllm.ways import Ways
from mooncask.errors import BadRequest, DeadlineExceeded, MooncaskError

WAITED_BLOCKS = 16
"""Blocks that are still being computed are waited for by so many, and copied meanwhile."""


class Load:
    """`blocks` is how many were copied so far, from the first on."""

    def __init__(self, plan: LoadPlan, ways: Ways, after: Mark) -> None:
        """`after`: what was launched before may still write to the engine's blocks."""
        self.plan, self.blocks, self._late = plan, 0, False
        self._ways, self._after = ways, after

    def run(self) -> LoadDone:
        """Raises nothing of Mooncask's."""
        started = time.monotonic()
        try:
            self._copy_all(started + self._ways.connection.settings.load_deadline_seconds)
            self._ways.connection.worked()
        except MooncaskError as error:
            self._ways.connection.fault("load", error)
        return self.done(time.monotonic() - started)

    def done(self, seconds: float) -> LoadDone:
        size = self.blocks * self._ways.planes.block_bytes
        self._ways.counters.add("loaded_blocks", self.blocks)
        self._ways.counters.add("loaded_bytes", size)
        self._ways.counters.add("load_failed_blocks", len(self.plan.keys) - self.blocks)
        took = seconds + self.plan.asked_seconds
        return LoadDone(self.plan.request_id, self.blocks, len(self.plan.keys), took, size, self.plan.tier, self._late)

    @property
    def complete(self) -> bool:
        return self.blocks == len(self.plan.keys)

    @property
    def missing_block_ids(self) -> list[int]:
        """Of the first KV cache group: of several, none may be reported."""
        return [places[0] for places in self.plan.places[self.blocks :] if places[0] is not None]

    def _copy_all(self, deadline: float) -> None:
        client, (handle,) = self._ways.connection.open()
        token = self.plan.tokens.get(self._ways.connection.shards[0].shard)
        if token is not None:
            self._copy_adopted(client, token)
        most = max(1, self._ways.connection.settings.lease_bytes // self._ways.planes.block_bytes)
        waits = self.plan.wait_seconds
        while self.blocks < len(self.plan.keys):
            wanted = self.plan.keys[self.blocks : self.blocks + min(most, WAITED_BLOCKS if waits else most)]
            left = waits or deadline - time.monotonic()
            if left <= 0 or self._copy_acquired(client, handle, wanted, left) < len(wanted):
                self._late = not waits and time.monotonic() >= deadline
                return

    def _copy_adopted(self, client: LocalClient, token: bytes) -> None:
        try:
            blocks = client.adopt(token)
        except BadRequest:
            return  # the step came later than a token is good for: they are leased anew
        with blocks:
            self._copy(in_order(blocks, self.plan.keys))

    def _copy_acquired(self, client: LocalClient, handle: NamespaceHandle, keys: list[bytes], seconds: float) -> int:
        settings = self._ways.connection.settings
        try:
            blocks = client.acquire(handle, keys, seconds, wait=self.plan.wait, verify=settings.verify)
        except DeadlineExceeded:
            if not self.plan.wait_seconds:
                raise
            # A busy daemon answered just too late, and what has come meanwhile needs no more waiting.
            blocks = client.acquire(handle, keys, settings.deadline_seconds, verify=settings.verify)
        with blocks:
            return self._copy(blocks)

    def _copy(self, blocks: Iterable[Block | None]) -> int:
        """Copies up to the first that is missing or is no block of this engine's; how many."""
        copies: list[BlockCopy] = []
        for block in blocks:
            if block is None or block.size != self._ways.planes.block_bytes:
                break
            places = self.plan.places[self.blocks + len(copies)]
            copies.append(self._ways.planes.copy(places, block.torch(torch.uint8)))
        self._ways.copies.load(copies, self._after)
        self.blocks += len(copies)
        return len(copies)


def in_order(blocks: Blocks, keys: Sequence[bytes]) -> list[Block | None]:
    """Adopted leases come as the daemon keeps them; those that ended meanwhile are not among them."""
    by_key = {block.key: block for block in blocks if block is not None}
    found: list[Block | None] = []
    for key in keys:
        if key not in by_key:
            break
        found.append(by_key[key])
    return found
