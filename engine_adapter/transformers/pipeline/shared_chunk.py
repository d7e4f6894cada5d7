"""The blocks that one chunk completes, reserved by the head and written by the stages, each its own layers."""

from dataclasses import dataclass

from mooncask.client.operations import NewBlocks
from mooncask.client.reservations import Reservations
from mooncask.client.shared_places import reserve_shared
from mooncask.client.wire import CommitState
from mooncask.engine_adapter.transformers.store_link import StoreSession
from mooncask.errors import MooncaskError


@dataclass(frozen=True, slots=True)
class SharedChunk:
    """Ends with `commit` or `abort`. `blocks`: the numbers of those that there is a place for, in the order of the places."""

    reservations: Reservations
    token: bytes
    blocks: list[int]

    def advance(self, layers: int) -> None:
        """Layers [0, layers) are written by all stages that have them. Raises what the store answers."""
        self.reservations.advance(layers)

    def commit(self) -> int:
        """Publishes the blocks, of which every stage has said that it is done: how many. Raises what the store answers."""
        states = self.reservations.commit()
        return sum(state in (CommitState.PUBLISHED, CommitState.DURABLE) for state in states)

    def abort(self) -> None:
        """Gives the places back; those that a stage could still write stay out of use until it can't."""
        if self.reservations.open:
            self.reservations.abort()


def reserve_chunk(session: StoreSession, keys: list[bytes], indices: range) -> SharedChunk | None:
    """None when there is nothing to store or the store has no room, which is a fault of the session."""
    if not session.usable or not indices or not keys:
        return None
    layout, count = session.layout, len(indices)
    parents = [keys[index - 1] if index else b"" for index in indices]
    wanted = [keys[index] for index in indices]
    sizes, tokens = [layout.block_bytes] * count, [layout.block_tokens] * count
    new = NewBlocks(wanted, sizes, parents, list(indices), tokens, layout.layers)
    try:
        client, namespace = session.link.connect()
        made = reserve_shared(client, namespace, new, client.deadline_seconds)
    except MooncaskError as exc:
        session.fault(exc)
        return None
    places = zip(indices, made.reservations, strict=True)
    blocks = [index for index, slot in places if slot is not None]
    return SharedChunk(made.reservations, made.token, blocks)
