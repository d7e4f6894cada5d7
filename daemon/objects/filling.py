"""One block while its bytes arrive: a reserved place, filled from the start, published or given back."""

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import numpy as np

from mooncask.client.wire import CommitState
from mooncask.errors import BadRequest, MooncaskError, NoSuchBlock, NotEvictable
from mooncask.tiers.block import WriteMode
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.requests import Condition, PutRequest

if TYPE_CHECKING:
    from mooncask.daemon.service import Service, Writing

REQUEST_SECONDS = 30.0
"""For a load from below, a place to write, and a write to become durable: each."""


class Filling:
    """Of one task. Ends by `publish` or `abort`; both may be called once it has ended, and then do nothing."""

    def __init__(self, service: "Service", namespace: Namespace, writing: "Writing", size: int) -> None:
        self._service = service
        self._namespace = namespace
        self._writing: Writing | None = writing
        self._target = np.frombuffer(service.store.view(writing.extent), np.uint8)
        self._size = size
        self._done = 0
        self.key = writing.reservation.request.key

    @classmethod
    async def reserve(cls, service: "Service", namespace: Namespace, key: bytes, size: int) -> "Filling | None":
        """None: a KV block that is here already. Raises QuotaExceeded, Busy, LengthMismatch and the like."""
        deadline = time.monotonic() + REQUEST_SECONDS
        (writing,) = await service.reserve(namespace, [PutRequest(key, size)], deadline)
        return None if writing is None else cls(service, namespace, writing, size)

    @property
    def room(self) -> int:
        return self._size - self._done

    def take(self, piece: memoryview) -> None:
        """Copies; `piece` has at most `room` bytes."""
        end = self._done + piece.nbytes
        assert end <= self._size
        self._target[self._done : end] = np.frombuffer(piece, np.uint8)
        self._done = end

    async def publish(
        self, digest: bytes = b"", attributes: bytes = b"", condition: Condition | None = None
    ) -> CommitState:
        """Raises what `Service.commit` raises, and BadRequest when bytes are missing; nothing is published then."""
        writing, self._writing = self._writing, None
        assert writing is not None
        self._target = self._target[:0].copy()
        if self.room:
            self._service.abort(writing)
            raise BadRequest(f"{self._done} bytes came of {self._size}")
        return await self._service.commit(writing, digest, attributes, condition)

    def abort(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            self._target = self._target[:0].copy()
            self._service.abort(writing)


async def make_durable(service: "Service", namespace: Namespace, key: bytes) -> None:
    """Waits for the disk where the namespace's mode is write_through. What finds no room there is taken back, since it could
    not be evicted from DRAM either. Raises what `Store.durable` raises."""
    if namespace.spec.mode is not WriteMode.WRITE_THROUGH:
        return
    try:
        await service.durable(namespace, key, time.monotonic() + REQUEST_SECONDS)
    except NotEvictable:
        service.store.withdraw(namespace, key)
        raise


async def make_object_durable(service: "Service", namespace: Namespace, key: bytes) -> None:
    """As `make_durable`, for what was published under a name: that somebody deletes it meanwhile is no failure of the put."""
    with contextlib.suppress(NoSuchBlock):
        await make_durable(service, namespace, key)


async def put_small(
    service: "Service",
    namespace: Namespace,
    key: bytes,
    payload: bytes,
    attributes: bytes = b"",
    condition: Condition | None = None,
) -> None:
    """A whole block that is in memory. Published, not yet durable."""
    filling = await Filling.reserve(service, namespace, key, len(payload))
    assert filling is not None, "objects and their parts are replaced"
    try:
        filling.take(memoryview(payload))
        await filling.publish(attributes=attributes, condition=condition)
    finally:
        filling.abort()


async def ended(tasks: "list[asyncio.Task[None]]") -> list[MooncaskError]:
    """Waits for all; what went wrong in them."""
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    return [error for error in errors if isinstance(error, MooncaskError)]
