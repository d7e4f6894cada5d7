"""Places that several processes write, each a part: one reserves and commits, the others join by its token.

Whoever joined may write until it lets go of its views; only then, and when the reservation has ended, can a place become
another block's. The one that reserved must know that all the others are done before it commits.
"""

from dataclasses import dataclass

from mooncask.client import wire
from mooncask.client.blocks import Blocks
from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.operations import GRACE_SECONDS, NewBlocks, Operation, Replies, only_reply
from mooncask.client.reservations import Reservations
from mooncask.client.session import Session, milliseconds


@dataclass(frozen=True, slots=True)
class SharedReservations:
    """Reservations, and the token with which other processes join as long as none of them is committed or aborted.

    The token is empty where there is nothing to write.
    """

    reservations: Reservations
    token: bytes


def reserve_shared(
    client: LocalClient, namespace: NamespaceHandle, new: NewBlocks, deadline_seconds: float
) -> SharedReservations:
    """As `LocalClient.reserve`, for several writers. Raises AccessDenied where writers have no access to the arena itself."""

    def build(id: int, ns: int) -> wire.Message:
        columns = (list(new.parents), list(new.depths), list(new.tokens))
        waits = milliseconds(deadline_seconds)
        return wire.Reserve(id, ns, list(new.keys), list(new.sizes), waits, *columns, new.layers, new.hint, True)

    def shape(session: Session, replies: Replies) -> SharedReservations:
        reply = only_reply(replies, wire.Reserved)
        slots = session.reserved(new.keys, new.sizes, reply)
        return SharedReservations(Reservations(session, slots, client), reply.token)

    return client.run(Operation("reserve", build, shape, deadline_seconds + GRACE_SECONDS, namespace, writes=True))


def join(client: LocalClient, token: bytes, deadline_seconds: float) -> Blocks:
    """The places behind a token, in the order of their reserve and without those of blocks that the daemon had: as blocks
    whose views may be written. They must not be after the one that reserved was told that this writer is done.

    Raises BadRequest when a reservation among them has ended, AccessDenied for another uid or tenant.
    """

    def shape(session: Session, replies: Replies) -> Blocks:
        return session.joined(only_reply(replies, wire.Adopted))

    return client.run(Operation("join", lambda id, _: wire.Adopt(id, token), shape, deadline_seconds, writes=True))
