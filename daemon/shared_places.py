"""Places that several processes write: who reserved them gets a token, and whoever shows it while they are open may write too.

A co-writer's right is a lease on the place, charged to its own process. So a place goes to another block when the reservation
has ended and no co-writer can reach it any more, whoever of them dies first. Not here: that the writers agree on who writes
what, and that all have ended before the one that reserved commits; that is theirs to see to, as it is with one writer.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mooncask.daemon.service import Writing
from mooncask.errors import AccessDenied, BadRequest

if TYPE_CHECKING:
    from mooncask.daemon.session import Session

SHARES_MAX = 16384
NAME_BYTES = 8


@dataclass(frozen=True, slots=True)
class _Share:
    secret: bytes
    session: "Session"
    writings: tuple[Writing, ...]

    @property
    def open(self) -> bool:
        """Nothing of it is committed or aborted, and its connection lives."""
        known = self.session.writings
        return all(known.get(writing.id) is writing and writing.reservation.open for writing in self.writings)


class SharedPlaces:
    """The tokens of open reservations. Owned by the event loop's thread; holds no reference on any extent."""

    def __init__(self) -> None:
        self._shares: dict[bytes, _Share] = {}

    def share(self, session: "Session", writings: Sequence[Writing], random24: bytes) -> bytes:
        """A token of 24 bytes that is good until one of these reservations ends."""
        self._forget_ended()
        self._shares[random24[:NAME_BYTES]] = _Share(random24[NAME_BYTES:], session, tuple(writings))
        return random24

    def knows(self, token: bytes) -> bool:
        """Whether this is one of its tokens, good or not any more."""
        share = self._shares.get(token[:NAME_BYTES])
        return share is not None and hmac.compare_digest(share.secret, token[NAME_BYTES:])

    def joined(self, token: bytes, session: "Session") -> tuple[Writing, ...]:
        """The reservations behind a known token, for a writer of the same uid and tenant. Raises BadRequest, AccessDenied."""
        share = self._shares[token[:NAME_BYTES]]
        ours, theirs = share.session.process, session.process
        if (ours.peer.uid, ours.tenant) != (theirs.peer.uid, theirs.tenant) or session.staging is not None:
            raise AccessDenied("shared places are for writers in the arena of the same uid and tenant")
        if not share.open:
            raise BadRequest("these reservations have ended; their places are nobody's to write any more")
        return share.writings

    def _forget_ended(self) -> None:
        """From the oldest on: reservations are short, so those in front have ended."""
        ended: list[bytes] = []
        for name, share in self._shares.items():
            if share.open and len(self._shares) - len(ended) < SHARES_MAX:
                break
            ended.append(name)
        for name in ended:
            del self._shares[name]
