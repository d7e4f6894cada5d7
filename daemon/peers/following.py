"""`follow`: the question of one node to another about blocks that somebody there is putting or is about to (docs/PEERS.md). Pure."""

from enum import IntEnum

import msgspec

from mooncask.daemon.directory.have import decoded
from mooncask.errors import BadRequest

FOLLOW = "follow"
BLOCKS_MAX = 1024
"""In one question: keys and leases together."""
CHECKSUM_BYTES = 16
TELL_NOW = 255
"""In the place of a known state: whatever it is."""


class Coming(IntEnum):
    """What will become of a block at the node that is asked."""

    NOBODY = 0
    """Nobody there puts it (any more)."""
    EXPECTED = 1
    """Somebody has announced it, and has no place for it yet."""
    WRITING = 2
    HERE = 3
    """It can be read there."""


class Following(msgspec.Struct, frozen=True, array_like=True):
    """Answered when the state of a key is another than `states` says, or a lease has gone further than `layers` says.

    `leases` are of LeaseWriting: each is one writing of one block, and no other, also if its key is written anew.
    """

    ns_id: bytes
    keys: list[bytes]
    states: bytes
    leases: list[int]
    layers: list[int]


class Followed(msgspec.Struct, frozen=True, array_like=True):
    """`states[i]` and `totals[i]` (layers that a writer announced, 0 = none) of key i; the rest are columns of the leases.

    A lease is WRITING with `done[i]` of `of[i]` layers, HERE with the checksum of what was published from this very place, or
    NOBODY: what was read of it is of no block.
    """

    states: bytes
    totals: list[int]
    lease_states: bytes
    done: list[int]
    of: list[int]
    checksums: list[bytes]


def parse_following(payload: bytes) -> Following:
    """Raises BadRequest."""
    found = decoded(payload, Following)
    if not 0 < len(found.keys) + len(found.leases) <= BLOCKS_MAX:
        raise BadRequest(f"{len(found.keys)} keys and {len(found.leases)} leases followed at once; 1 to {BLOCKS_MAX}")
    if len(found.states) != len(found.keys) or len(found.layers) != len(found.leases):
        raise BadRequest("a batch with columns of different lengths")
    return found


def parse_followed(payload: bytes, keys: int, leases: int) -> Followed:
    """An answer about so many keys and leases. Raises BadRequest."""
    found = decoded(payload, Followed)
    if {len(found.states), len(found.totals)} != {keys}:
        raise BadRequest("an answer about other keys than were asked about")
    if {len(found.lease_states), len(found.done), len(found.of), len(found.checksums)} != {leases}:
        raise BadRequest("an answer about other leases than were asked about")
    if any(state > Coming.HERE for state in found.states + found.lease_states):
        raise BadRequest("an answer with a state that is none")
    ends = zip(found.lease_states, found.checksums, strict=True)
    if any(state == Coming.HERE and len(checksum) != CHECKSUM_BYTES for state, checksum in ends):
        raise BadRequest("a block that is there without its checksum")
    return found


def written_bytes(size: int, done: int, of: int) -> int:
    """How much of a payload is written when `done` of `of` layers are: layers lie one after the other and are equally long. A
    payload that can't be divided so is not written before it is whole."""
    if of <= 0 or size % of or not 0 <= done <= of:
        return 0
    return size // of * done
