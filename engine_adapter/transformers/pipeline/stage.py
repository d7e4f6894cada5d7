"""One stage: its layers, its part of the KV, and the hidden states of chunk after chunk from the stage before to the next.

It writes its layers of a chunk's blocks straight into the places that the head has reserved. Its right to do so is a lease of its
own (`client/shared_places.py`), let go before it says that it is done: so the head may die at any moment, and no byte lands in
another block. It ends when its head is gone. Not here: which prompts, which chunks; that is the head's (`job.py`).
"""

import logging
import os
import socket
import time
from collections import Counter
from pathlib import Path

import torch

from mooncask.client.shared_places import join
from mooncask.engine_adapter.transformers.engine import BUFFER_STEP_TOKENS
from mooncask.engine_adapter.transformers.kv_layout import KvBuffer, KvLayout
from mooncask.engine_adapter.transformers.pipeline.channel import Channel, HiddenIn, HiddenOut
from mooncask.engine_adapter.transformers.pipeline.messages import (
    Begin,
    Compute,
    Computed,
    Loaded,
    Refused,
    Setup,
    ToStage,
    Up,
)
from mooncask.engine_adapter.transformers.pipeline.split import Part, load_part
from mooncask.engine_adapter.transformers.store_link import StoreAddress, StoreLink
from mooncask.errors import MooncaskError, WorkerUnavailable

log = logging.getLogger(__name__)


class PartBuffer(KvBuffer):
    """The KV of one request for some layers; blocks, of which it reads and writes its layers only, are whole ones."""

    def __init__(self, part: Part, capacity_tokens: int) -> None:
        super().__init__(part.own_layout, capacity_tokens)
        self._layers = part.layers

    def load_block(self, index: int, block: torch.Tensor) -> None:
        self._tokens(index).copy_(block[self._layers.start : self._layers.stop])

    def save_layer(self, layer: int, index: int, block: torch.Tensor) -> None:
        """`layer` counts from the part's first."""
        block[self._layers.start + layer].copy_(self._tokens(index)[layer])


class Stage:
    """Belongs to one thread."""

    def __init__(self, setup: Setup, part: Part, before: HiddenIn | None, after: HiddenOut | None) -> None:
        self._part, self._before, self._after = part, before, after
        address = StoreAddress(setup.socket, setup.namespace, setup.mode, setup.deadline_seconds)
        self._link = StoreLink(address, setup.name, setup.family, part.layout)
        self._buffer: PartBuffer | None = None

    def begin(self, begin: Begin) -> Loaded:
        buffer = self._buffer_for(begin.tokens)
        session = self._link.session(bool(begin.keys))
        outcome = session.load(begin.keys, buffer, begin.load_seconds)
        tiers = dict(outcome.bytes_by_tier)
        return Loaded(begin.job, outcome.blocks, outcome.seconds, tiers, dict(session.faults))

    def compute(self, chunk: Compute) -> Computed:
        hidden = self._hidden(chunk)
        started, faults = time.process_time(), Counter[str]()
        places = self._places(chunk, faults)
        buffer = self._buffer
        assert buffer is not None

        def written(layer: int) -> None:
            for index, place in places:
                buffer.save_layer(layer, index, place)

        out = self._part.run(hidden, self._part.cache(buffer, chunk.start, written))
        if places:
            places.clear()  # from here on nothing can be written there
            self._link.connect()[0].flush()
        seconds = time.process_time() - started
        if self._after is not None:
            self._after.put(chunk.job, chunk.start, out)
        return Computed(chunk.job, chunk.start, seconds, own_bytes(), dict(faults))

    def close(self) -> None:
        self._link.close()

    # --- parts ---

    def _hidden(self, chunk: Compute) -> torch.Tensor:
        if self._before is None:
            return self._part.embed(chunk.ids)
        return self._before.get(chunk.job, chunk.start, chunk.stop - chunk.start)

    def _places(self, chunk: Compute, faults: Counter[str]) -> list[tuple[int, torch.Tensor]]:
        """A tensor over each block's place; none, and a fault, when the store does not let it in."""
        if not chunk.token:
            return []
        layout = self._part.layout
        try:
            client = self._link.connect()[0]
            with join(client, chunk.token, self._link.address.deadline_seconds) as found:
                tensors = [block.torch(layout.torch_dtype, layout.block_shape) for block in found if block is not None]
        except MooncaskError as exc:
            log.warning("a chunk is not stored: %s", exc)
            faults[type(exc).__name__] += 1
            return []
        return list(zip(chunk.blocks, tensors, strict=True))

    def _buffer_for(self, tokens: int) -> PartBuffer:
        if self._buffer is None or self._buffer.capacity_tokens < tokens:
            steps = -(-tokens // BUFFER_STEP_TOKENS)
            self._buffer = None  # before the new one is made: never two at a time
            self._buffer = PartBuffer(self._part, steps * BUFFER_STEP_TOKENS)
        return self._buffer


def run_stage(control: "Channel[ToStage]", before: socket.socket | None, after: socket.socket | None) -> None:
    """Serves its head until that is gone. Raises WorkerUnavailable then, or when a neighbour is."""
    setup = control.receive()
    assert isinstance(setup, Setup)
    stage = _made(control, setup, before, after)
    if stage is None:
        return
    try:
        while True:
            message = control.receive()
            if isinstance(message, Begin):
                control.send(stage.begin(message))
            elif isinstance(message, Compute):
                control.send(stage.compute(message))
            else:
                raise WorkerUnavailable(control.who, "it said twice who this stage is")
    finally:
        stage.close()


def _made(
    control: "Channel[ToStage]", setup: Setup, before: socket.socket | None, after: socket.socket | None
) -> Stage | None:
    """None when it cannot be, which the head is told."""
    layout = KvLayout(
        setup.layers, setup.kv_heads, setup.head_dim, setup.block_tokens, setup.dtype, tuple(setup.windows)
    )
    try:
        part = load_part(Path(setup.folder), setup.dtype, layout, range(setup.first, setup.stop))
    except MooncaskError as exc:
        control.send(Refused(type(exc).__name__, exc.message))
        return None
    width = part.decoder.config.hidden_size
    into = None if before is None else HiddenIn(before, width, layout.torch_dtype)
    stage = Stage(setup, part, into, None if after is None else HiddenOut(after))
    control.send(Up(os.getpid(), part.weight_bytes, own_bytes()))
    return stage


def own_bytes() -> int:
    """Resident memory of this process alone: no libraries, no weight files, nothing of the daemon's arena."""
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
