"""What a caller holds: blocks to read in place, slots to write in place. Knows no socket.

A view of a block (memoryview, numpy array, tensor) is valid for as long as it lives: the lease ends with the last one.
Closing a block only drops this object's own view.
"""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
import numpy.typing as npt

from mooncask.client.arena_map import ArrayAlias
from mooncask.client.leases import Bytes, LeaseBook, LeaseRef
from mooncask.client.wire import Tier
from mooncask.errors import BadRequest

if TYPE_CHECKING:
    from torch import Tensor
    from torch import dtype as TorchDtype

Shape = int | Sequence[int]


def _shaped(memory: memoryview, dtype: npt.DTypeLike, shape: Shape) -> npt.NDArray[Any]:
    try:
        return np.frombuffer(memory, dtype).reshape(shape)
    except ValueError as exc:
        raise BadRequest(f"block of {memory.nbytes} bytes as {np.dtype(dtype)} {shape}: {exc}") from exc


def _address(array: Bytes) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _tensor(memory: memoryview, address: int, dtype: "TorchDtype", shape: Shape) -> "Tensor":
    """torch knows no read-only tensors and warns of read-only buffers, so it is shown the address instead."""
    import torch

    flat = torch.from_numpy(np.asarray(ArrayAlias(address, memory.nbytes, memory)))
    try:
        return flat.view(dtype).reshape(shape)
    except RuntimeError as exc:
        raise BadRequest(f"block of {memory.nbytes} bytes as {dtype} {shape}: {exc}") from exc


class Block:
    """One leased block. Any thread may read it."""

    __slots__ = ("_array", "_tier", "key", "lease", "size")

    def __init__(self, key: bytes, array: Bytes, size: int, tier: int, lease: LeaseRef) -> None:
        self.key = key
        self.size = size
        self.lease = lease
        self._array: Bytes | None = array
        self._tier = tier

    @property
    def tier(self) -> Tier:
        """Where the daemon found it: a block that came from NVMe is in DRAM by now."""
        return Tier(self._tier)

    @property
    def memory(self) -> memoryview:
        """The block's bytes in place, read-only. Raises BadRequest when the block was closed."""
        if self._array is None:
            raise BadRequest(f"block {self.key.hex()} is closed; take views of it before its with statement ends")
        return self._array.data

    def numpy(self, dtype: npt.DTypeLike = np.uint8, shape: Shape = -1) -> npt.NDArray[Any]:
        """A read-only array over the bytes, not a copy. Raises BadRequest when they don't fit dtype and shape."""
        return _shaped(self.memory, dtype, shape)

    def torch(self, dtype: "TorchDtype", shape: Shape = -1) -> "Tensor":
        """A tensor over the bytes, not a copy. Writing to it is a memory fault that ends the process (SIGSEGV): the memory is
        mapped read-only, which torch cannot express. Raises BadRequest when the bytes don't fit dtype and shape."""
        memory = self.memory
        assert self._array is not None
        return _tensor(memory, _address(self._array), dtype, shape)

    def close(self) -> None:
        """Drops this object's view; the lease ends now, or with the last view that was taken."""
        self._array = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Blocks(Sequence["Block | None"]):
    """The blocks of one acquire, in the order of its keys; None for those that are not here. A context manager: leaving it
    closes them all."""

    __slots__ = ("_items", "book", "token")

    def __init__(self, items: list[Block | None], book: LeaseBook, token: bytes = b"") -> None:
        self._items, self.book = items, book
        self.token = token
        """With which another process can adopt the leases; empty unless it was asked for."""

    @overload
    def __getitem__(self, index: int) -> Block | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[Block | None]: ...
    def __getitem__(self, index: int | slice) -> Block | list[Block | None] | None:
        return self._items[index]

    def __iter__(self) -> Iterator[Block | None]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def prefix(self) -> int:
        """How many blocks from the first on are here."""
        return next((i for i, item in enumerate(self._items) if item is None), len(self._items))

    def hand_over(self) -> bytes:
        """Closes the blocks here without ending their leases, and returns the token for another process to adopt them.

        What nobody adopts within a few seconds is given back. Views taken here must be gone: they protect nothing any more.
        """
        if not self.token:
            raise BadRequest("these blocks have no token; acquire them with want_token=True")
        for item in self._items:
            if item is not None:
                self.book.hand_over(item.lease)
        self.close()
        return self.token

    def close(self) -> None:
        """Closes every block."""
        for item in self._items:
            if item is not None:
                item.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Slot:
    """A reserved place for one block: fill `memory`, then commit the reservations it belongs to.

    A place that is not committed is given back when the last view of it is gone, never earlier.
    """

    __slots__ = ("_array", "book", "generation", "key", "reservation", "size")

    def __init__(self, key: bytes, array: Bytes, reservation: int, generation: int, book: LeaseBook) -> None:
        self.key, self.size = key, array.nbytes
        self.reservation, self.generation = reservation, generation
        self.book = book
        self._array: Bytes | None = array

    @property
    def memory(self) -> memoryview:
        """The place, writable. Raises BadRequest after commit or abort: readers may have it then."""
        if self._array is None:
            raise BadRequest(f"block {self.key.hex()} is committed or aborted; its memory is not the writer's any more")
        return self._array.data

    def numpy(self, dtype: npt.DTypeLike = np.uint8, shape: Shape = -1) -> npt.NDArray[Any]:
        """A writable array over the place. It must not be written after commit."""
        return _shaped(self.memory, dtype, shape)

    def torch(self, dtype: "TorchDtype", shape: Shape = -1) -> "Tensor":
        """A tensor over the place. It must not be written after commit."""
        memory = self.memory
        assert self._array is not None
        return _tensor(memory, _address(self._array), dtype, shape)

    def settle(self) -> None:
        """The place is about to be committed."""
        self.book.settle(self.reservation)
        self._array = None

    def close(self) -> None:
        """The place will not be committed: it is given back as soon as no view of it is left."""
        self._array = None
