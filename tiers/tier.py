"""The one interface of all tiers. tests/tiers/test_tier_contract.py is its specification.

What only some tiers can do is a Protocol of its own beside it (`Addressable`), never a flag.
"""

from collections.abc import Iterator
from typing import Protocol

from mooncask.tiers.block import BlockRecord, Extent, TierName


class Tier(Protocol):
    """Holds blocks. All methods are called from the event loop's thread; the awaitable ones may run side by side.

    A place's life: reserve -> commit -> read ... read -> free. Nothing but the caller's `free` ends it, so bytes can't
    vanish under a reader: the caller counts references (`Extent.references`) and frees at zero.
    """

    name: TierName
    capacity_bytes: int

    @property
    def used_bytes(self) -> int:
        """Bytes in extents that are reserved or committed and not yet free."""
        ...

    def reserve(self, size: int) -> Extent | None:
        """A place for `size` payload bytes (`Extent.references` = 1), or None when there is no room. No I/O."""
        ...

    async def commit(self, extent: Extent, record: BlockRecord, payload: memoryview) -> None:
        """Write `payload` (`record.size` bytes) into a reserved extent; it returns when they are as safe as they get here.

        Raises TierDegraded when the tier can't write. After a failure the extent is still reserved and unreadable:
        the caller frees it. `payload` is borrowed until this returns. Cancelling waits for I/O in flight to end.
        """
        ...

    async def read(self, extent: Extent, record: BlockRecord, into: memoryview) -> None:
        """Copy the payload into `into` (`record.size` bytes, or more up to `extent.length`) and check it.

        Raises CorruptBlock when the bytes, the key or the sequence found there are not the record's; `into` is garbage
        then. Reading does not modify the tier.
        """
        ...

    def free(self, extent: Extent) -> None:
        """Give the place back. Whoever still reads it has broken the contract. No I/O."""
        ...

    def keys(self) -> Iterator[tuple[int, bytes]]:
        """(namespace, key) of every committed block that was not freed, in no order."""
        ...

    async def close(self) -> None:
        """Finish I/O in flight and release memory, files and threads. The tier can't be used afterwards."""
        ...


class Addressable(Protocol):
    """A tier whose extents are memory of this machine: they can be read and written in place."""

    def view(self, extent: Extent) -> memoryview:
        """The extent's bytes [0, extent.length), writable, valid until the extent is freed."""
        ...
