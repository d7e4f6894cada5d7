"""Reserved slots between reserve and commit, for both clients."""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar, overload

import numpy as np

from mooncask.client import operations
from mooncask.client.blocks import Slot
from mooncask.client.operations import Operation
from mooncask.client.session import Session
from mooncask.client.wire import CommitState
from mooncask.errors import BadRequest

T = TypeVar("T")


class OpenSlots(Sequence["Slot | None"]):
    """The slots of one reserve, in the order of its keys; None for blocks that the daemon has. Committed or aborted once.

    One thread (or task) at a time. What is dropped without a commit is given back when no view of it is left.
    """

    def __init__(self, session: Session, slots: list[Slot | None]) -> None:
        self.session = session
        self._slots = slots
        self._open = True

    @overload
    def __getitem__(self, index: int) -> Slot | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[Slot | None]: ...
    def __getitem__(self, index: int | slice) -> Slot | list[Slot | None] | None:
        return self._slots[index]

    def __iter__(self) -> Iterator[Slot | None]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def to_write(self) -> list[Slot]:
        """The slots that there are."""
        return [slot for slot in self._slots if slot is not None]

    @property
    def open(self) -> bool:
        """Whether they can still be committed."""
        return self._open

    def settle(self) -> list[Slot]:
        """The slots, about to be committed, their memory closed. Raises BadRequest the second time."""
        if not self._open:
            raise BadRequest("these reservations are committed or aborted already; reserve again")
        self._open = False
        found = self.to_write
        for slot in found:
            slot.settle()
        return found

    def close(self) -> None:
        """Gives back what was not committed: at once, or when the last view of a place is gone."""
        self._open = False
        for slot in self.to_write:
            slot.close()

    def chosen_digests(self, digests: Sequence[bytes] | None) -> list[bytes]:
        """The digests of the slots that there are, of one a key."""
        return self._chosen(digests, "digests")

    def chosen_token_ids(self, token_ids: Sequence[Sequence[int]] | None) -> list[bytes]:
        """Likewise, as they go on the wire."""
        return [np.asarray(ids, "<u4").tobytes() for ids in self._chosen(token_ids, "lists of token ids")]

    def _chosen(self, column: Sequence[T] | None, what: str) -> list[T]:
        if column is None:
            return []
        if len(column) != len(self._slots):
            raise BadRequest(f"{len(self._slots)} blocks and {len(column)} {what}; each block needs one")
        return [item for item, slot in zip(column, self._slots, strict=True) if slot is not None]

    def states(self, answered: Sequence[CommitState]) -> list[CommitState]:
        """A state a key, from those of the slots that there were."""
        states = iter(answered)
        return [CommitState.HAVE_IT if slot is None else next(states) for slot in self._slots]


class Runner(Protocol):
    """The part of a sync client that reservations use."""

    deadline_seconds: float

    def run(self, operation: Operation[T]) -> T: ...
    def flush(self) -> bool: ...


class Reservations(OpenSlots):
    """Reserved slots of a `LocalClient`. Leaving its with statement gives back what was not committed."""

    def __init__(self, session: Session, slots: list[Slot | None], client: Runner) -> None:
        super().__init__(session, slots)
        self._client = client

    def advance(self, layer: int) -> None:
        """Layers [0, layer) of all slots are written: tells those who wait."""
        if self.to_write:
            self._client.run(operations.advance(self.session, self.to_write, layer, self._client.deadline_seconds))

    def commit(
        self,
        durable: bool = False,
        digests: Sequence[bytes] | None = None,
        deadline_seconds: float | None = None,
        token_ids: Sequence[Sequence[int]] | None = None,
    ) -> list[CommitState]:
        """Publishes the blocks; HAVE_IT where there was nothing to write or another was first. The memory must not be written
        from now on. `token_ids`, each block's, are told to whoever follows the daemon's KV events, and stored nowhere.
        Raises the first block's error when some fail, UnknownReservation after the connection was cut."""
        chosen, tokens, slots = self.chosen_digests(digests), self.chosen_token_ids(token_ids), self.settle()
        seconds = self._client.deadline_seconds if deadline_seconds is None else deadline_seconds
        if not slots:
            return self.states([])
        answered = self._client.run(operations.commit(self.session, slots, seconds, durable, chosen, tokens))
        return self.states(answered)

    def abort(self) -> None:
        """Gives the places back: at once, or when the last view of one is gone."""
        self.close()
        self._client.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.open:
            self.abort()


class AsyncRunner(Protocol):
    """The part of an asyncio client that reservations use."""

    deadline_seconds: float

    async def run(self, operation: Operation[T]) -> T: ...
    def flush(self) -> bool: ...


class AsyncReservations(OpenSlots):
    """Reserved slots of an `AsyncLocalClient`. Leaving its with statement gives back what was not committed."""

    def __init__(self, session: Session, slots: list[Slot | None], client: AsyncRunner) -> None:
        super().__init__(session, slots)
        self._client = client

    async def advance(self, layer: int) -> None:
        """As `Reservations.advance`."""
        if self.to_write:
            seconds = self._client.deadline_seconds
            await self._client.run(operations.advance(self.session, self.to_write, layer, seconds))

    async def commit(
        self,
        durable: bool = False,
        digests: Sequence[bytes] | None = None,
        deadline_seconds: float | None = None,
        token_ids: Sequence[Sequence[int]] | None = None,
    ) -> list[CommitState]:
        """As `Reservations.commit`."""
        chosen, tokens, slots = self.chosen_digests(digests), self.chosen_token_ids(token_ids), self.settle()
        seconds = self._client.deadline_seconds if deadline_seconds is None else deadline_seconds
        if not slots:
            return self.states([])
        answered = await self._client.run(operations.commit(self.session, slots, seconds, durable, chosen, tokens))
        return self.states(answered)

    def abort(self) -> None:
        """As `Reservations.abort`: only sends, waits for nothing."""
        self.close()
        self._client.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.open:
            self.abort()
