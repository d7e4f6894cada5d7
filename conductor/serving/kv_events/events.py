"""Batches of KV events as vLLM and those who follow it encode them: msgpack, `[seconds, [event, …], rank]`, where an event is a
map with its type or, before vLLM 0.32, an array that begins with it. Pure; what is not understood raises BadEvents.

Only what its readers need is kept: unknown fields and unknown events are passed over.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

ARRAY_FIELDS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}
GPU = "GPU"
"""Where a block is that does not say."""


class BadEvents(Exception):
    """A batch that is none."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Consecutive blocks of one chain behind `parent`."""

    hashes: list[int]
    parent: int | None
    tokens: list[int]
    block_tokens: int
    lora: str
    medium: str
    extra: Sequence[Any] = ()
    """One a block: what its hash is of beside tokens, a salt or images; nothing for none."""
    group: int = 0
    """Of the KV cache groups that a hybrid model has."""

    @property
    def apart(self) -> bool:
        """Their KV is of more than these tokens."""
        return any(self.extra)


@dataclass(frozen=True, slots=True)
class Removed:
    hashes: list[int]
    medium: str
    group: int = 0


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing that was said before holds any more."""


Event = Stored | Removed | Cleared


def decode(payload: bytes) -> list[Event]:
    """Raises BadEvents."""
    try:
        batch = msgspec.msgpack.decode(payload)
        return [made for given in batch[1] if (made := _event(_fields(given))) is not None]
    except (msgspec.DecodeError, TypeError, ValueError, KeyError, IndexError) as exc:
        raise BadEvents(f"{type(exc).__name__}: {exc}") from exc


def _fields(given: Any) -> Mapping[str, Any]:
    if isinstance(given, list):
        kind, *values = given
        return {"type": kind, **dict(zip(ARRAY_FIELDS.get(kind, ()), values, strict=False))}
    if isinstance(given, dict):
        return given
    raise BadEvents("an event is a map or an array")


def _event(given: Mapping[str, Any]) -> Event | None:
    make = _MAKERS.get(str(given.get("type")))
    return None if make is None else make(given)


def _stored(given: Mapping[str, Any]) -> Stored:
    parent = given.get("parent_block_hash")
    extra = given.get("extra_keys")
    tokens, block_tokens = given["token_ids"], given["block_size"]
    if not isinstance(block_tokens, int) or block_tokens < 1 or not isinstance(tokens, list):
        raise ValueError("BlockStored without tokens or block size")
    return Stored(
        hashes=[_number(one) for one in given["block_hashes"]],
        parent=None if parent is None else _number(parent),
        tokens=tokens,
        block_tokens=block_tokens,
        lora=_lora(given),
        medium=_medium(given.get("medium")),
        extra=extra if isinstance(extra, list) else [extra] if extra else (),
        group=given.get("group_idx") or 0,
    )


def _removed(given: Mapping[str, Any]) -> Removed:
    return Removed(
        [_number(one) for one in given["block_hashes"]], _medium(given.get("medium")), given.get("group_idx") or 0
    )


def _cleared(given: Mapping[str, Any]) -> Cleared:
    return Cleared()


_MAKERS: dict[str, Callable[[Mapping[str, Any]], Event]] = {
    "BlockStored": _stored,
    "BlockRemoved": _removed,
    "AllBlocksCleared": _cleared,
}


def _number(told: Any) -> int:
    """A hash as 64 bits, whatever it came as: longer ones by their last eight bytes."""
    if isinstance(told, bytes):
        return int.from_bytes(told[-8:], "big")
    if isinstance(told, int) and not isinstance(told, bool):
        return told & (1 << 64) - 1
    raise ValueError("a hash is a number, or bytes")


def _lora(given: Mapping[str, Any]) -> str:
    name, number = given.get("lora_name"), given.get("lora_id")
    return str(name) if name else "" if number is None else str(number)


def _medium(told: Any) -> str:
    """GPU, CPU, DISK, or what else it says."""
    text = str(told or GPU).upper()
    return "CPU" if text.startswith("CPU") else text[:32]
