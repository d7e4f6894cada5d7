"""What stands in the values of the directory's server. Anything may stand in a server that others use too."""

import msgspec

from mooncask.daemon.directory.directory import INCARNATION_BYTES, NodeRecord
from mooncask.daemon.directory.scripts import HOLDERS_MAX


def parsed_incarnations(value: bytes | None) -> list[bytes]:
    """Of a location; no more than are ever put there."""
    size, end = INCARNATION_BYTES, min(len(value or b""), INCARNATION_BYTES * HOLDERS_MAX)
    return [] if value is None else [value[at : at + size] for at in range(0, end - size + 1, size)]


def parsed_record(value: bytes) -> NodeRecord | None:
    """None for what is none: anything may stand in a server that others use too."""
    try:
        found = msgspec.msgpack.decode(value[INCARNATION_BYTES:], type=NodeRecord)
    except msgspec.MsgspecError:
        return None
    return found if found.incarnation == value[:INCARNATION_BYTES] else None
