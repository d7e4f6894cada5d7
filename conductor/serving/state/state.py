"""The store of what must last, as its users see it. Implementations: `sqlite.py`, `valkey.py`; `opening.py` chooses one.

Records are bytes under (table, key), each with a version: whoever changes one names the version that it has read, and of
several who change it at once one succeeds. So a record is also a claim. The log has entries with ids; an id stands once.
Not here: what the bytes mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Record:
    """`version` is another one after each change, also when the record was deleted in between."""

    key: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log. `at`: wall-clock seconds, by which entries are found and in the end forgotten."""

    id: str
    tenant: str
    at: float
    value: bytes


class State(Protocol):
    """Belongs to one event loop, which it never blocks. Every call raises StateUnavailable when the store does not answer."""

    async def get(self, table: str, key: str) -> Record | None: ...

    async def put(self, table: str, key: str, value: bytes, version: int) -> int:
        """The record's new version if it had `version` (0: if it was not there), else 0 and nothing has changed."""
        ...

    async def delete(self, table: str, key: str, version: int) -> bool:
        """Whether it had `version`, and is gone."""
        ...

    async def records(self, table: str, prefix: str = "") -> list[Record]:
        """All whose keys begin so, in key order."""
        ...

    async def append(self, entries: Sequence[Entry]) -> list[Entry]:
        """What stands under these ids now: an entry whose id is there already is left as it was."""
        ...

    async def entries(self, tenant: str, begin: float, end: float, offset: int, limit: int) -> list[Entry]:
        """Of begin <= at < end, in the order of (at, id)."""
        ...

    async def forget(self, before: float) -> int:
        """Entries older than that go; returns how many."""
        ...

    async def close(self) -> None: ...
