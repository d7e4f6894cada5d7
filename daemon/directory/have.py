"""`have`: the question of one node to another that stands for a directory where there is none (docs/PEERS.md)."""

from typing import TypeVar

import msgspec

from mooncask.errors import BadRequest

HAVE = "have"
HAVE_KEYS_MAX = 1024
KEY_BYTES_MAX = 1024

Question = TypeVar("Question", bound=msgspec.Struct)


class Have(msgspec.Struct, frozen=True, array_like=True):
    """Which of these blocks do you have? At most HAVE_KEYS_MAX."""

    ns_id: bytes
    keys: list[bytes]


class Has(msgspec.Struct, frozen=True, array_like=True):
    """`sizes[i]` is that of block i, 0 = it is not here."""

    sizes: list[int]


def decoded(payload: bytes, kind: type[Question]) -> Question:
    """Raises BadRequest."""
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"a peer's message is no {kind.__name__}: {error}") from error
