"""A load within the step that computes the request: layer by layer in a thread, while the layers before compute.

All blocks are leased before the first byte is copied, so what is missing is known at once, and a layer that is in is in for
all of them. Whatever goes wrong, the blocks are reported and computed in a later step; until then nothing of the request
may be saved. Not here: which requests are loaded this way (`scheduling.py`).
"""

import threading
import time
from contextlib import ExitStack

import torch

from mooncask.client.blocks import Block
from mooncask.engine_adapter.vllm.device.copies import Mark
from mooncask.engine_adapter.vllm.loading import Load, in_order
from mooncask.engine_adapter.vllm.messages import LoadDone, LoadPlan
from mooncask.engine_adapter.vllm.ways import Ways
from mooncask.errors import BadRequest, MooncaskError


class LayerLoad(Load):
    """`blocks` is 0 until all layers are in."""

    def __init__(self, plan: LoadPlan, ways: Ways, after: Mark) -> None:
        super().__init__(plan, ways, after)
        self._layers = {layer: threading.Event() for layer in ways.planes.layers}
        self._over = threading.Event()

    def wait_for(self, layer: str) -> None:
        """Returns when the layer is in, or the load has failed. No longer than the calls of the daemon that it makes, which have
        deadlines, and copying."""
        self._layers.get(layer, self._over).wait()

    def run(self) -> LoadDone:
        """Raises nothing of Mooncask's."""
        started = time.monotonic()
        try:
            with ExitStack() as leases:
                blocks = self._leased(leases)
                for layer, event in self._layers.items():
                    parts = zip(self.plan.places, blocks, strict=False)  # as many as there are
                    copies = [
                        self._ways.planes.layer_copy(layer, ids, block.torch(torch.uint8)) for ids, block in parts
                    ]
                    self._ways.copies.load(copies, self._after)
                    event.set()
                self.blocks = len(blocks)
            self._ways.connection.worked()
        except MooncaskError as error:
            self._ways.connection.fault("load", error)
        finally:
            for event in (*self._layers.values(), self._over):
                event.set()
        return self.done(time.monotonic() - started)

    def _leased(self, leases: ExitStack) -> list[Block]:
        """The blocks from the first on, up to one that is missing or is none of this engine's."""
        client, (handle,) = self._ways.connection.open()
        token = self.plan.tokens.get(self._ways.connection.shards[0].shard)
        found: list[Block | None] = []
        if token:
            try:
                found = in_order(leases.enter_context(client.adopt(token)), self.plan.keys)
            except BadRequest:  # the step came later than a token is good for
                token = None
        if not token:
            seconds, verify = self._ways.connection.settings.deadline_seconds, self._ways.connection.settings.verify
            found = list(leases.enter_context(client.acquire(handle, self.plan.keys, seconds, verify=verify)))
        usable: list[Block] = []
        for block in found:
            if block is None or block.size != self._ways.planes.block_bytes:
                break
            usable.append(block)
        return usable
