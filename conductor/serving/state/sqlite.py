"""State in a SQLite file, or in memory. One thread writes, in the order of the calls; a commit has reached the disk.

Several processes may use one file: SQLite's own lock makes their changes one after the other. Reads of a file have a thread
and a connection of their own, so that a long bill does not hold up a claim.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from mooncask.conductor.serving.state.state import Entry, Record
from mooncask.errors import ConfigError, StateUnavailable

P = ParamSpec("P")
T = TypeVar("T")

MEMORY = ":memory:"
BUSY_SECONDS = 5.0
SCHEMA_VERSION = 1
SCHEMA = """
create table if not exists records (tab text, key text, value blob not null, version integer not null, primary key (tab, key));
create table if not exists versions (next integer not null);
insert into versions select 1 where not exists (select 1 from versions);
create table if not exists log (id text primary key, tenant text not null, at real not null, value blob not null);
create index if not exists log_at on log (tenant, at, id);
create index if not exists log_age on log (at);
"""


class _Connection:
    """One connection with its thread."""

    def __init__(self, name: str, path: str) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._opened: sqlite3.Connection | None = None

    async def do(self, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **named: P.kwargs) -> T:
        """In one transaction. Raises StateUnavailable."""

        def run() -> T:
            with self._connection() as connection:
                return work(connection, *args, **named)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, run)
        except (sqlite3.Error, OSError) as exc:
            raise StateUnavailable(self._path, str(exc)) from exc

    def close(self) -> None:
        self._thread.submit(self._close)
        self._thread.shutdown()

    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            if self._path != MEMORY:  # messages and salts are in it: nobody else's to read
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            opened = sqlite3.connect(self._path, timeout=BUSY_SECONDS)
            opened.execute("pragma synchronous = full")
            self._opened = opened
        return self._opened

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()


class SqliteState:
    """`state.State`. `path`: a file, made if need be for its owner alone, or ":memory:"."""

    def __init__(self, path: str) -> None:
        self._writer = _Connection("state-writer", path)
        self._reader = self._writer if path == MEMORY else _Connection("state-reader", path)
        self._path = path

    async def open(self) -> None:
        """Raises ConfigError for a file that is no state of this version, or can't be written."""
        if self._path != MEMORY:
            folder = Path(self._path).parent
            if not folder.is_dir():
                raise ConfigError("state.url", self._path, f"there is no folder {folder}")
        try:
            found = await self._writer.do(_prepare)
        except StateUnavailable as exc:
            raise ConfigError("state.url", self._path, exc.message) from exc
        if found not in (0, SCHEMA_VERSION):
            raise ConfigError("state.url", self._path, f"is of version {found}; this program knows {SCHEMA_VERSION}")

    async def get(self, table: str, key: str) -> Record | None:
        return await self._reader.do(_get, table, key)

    async def put(self, table: str, key: str, value: bytes, version: int) -> int:
        return await self._writer.do(_put, table, key, value, version)

    async def delete(self, table: str, key: str, version: int) -> bool:
        return await self._writer.do(_delete, table, key, version)

    async def records(self, table: str, prefix: str = "") -> list[Record]:
        return await self._reader.do(_records, table, prefix)

    async def append(self, entries: Sequence[Entry]) -> list[Entry]:
        return await self._writer.do(_append, entries)

    async def entries(self, tenant: str, begin: float, end: float, offset: int, limit: int) -> list[Entry]:
        return await self._reader.do(_entries, tenant, begin, end, offset, limit)

    async def forget(self, before: float) -> int:
        return await self._writer.do(_forget, before)

    async def close(self) -> None:
        """What was given to the writer is written first."""
        for connection in {self._reader, self._writer}:
            await asyncio.to_thread(connection.close)


# --- in the threads ---


def _prepare(connection: sqlite3.Connection) -> int:
    """The version of what is there; 0 where nothing was."""
    version = int(connection.execute("pragma user_version").fetchone()[0])
    tables = {row[0] for row in connection.execute("select name from sqlite_master where type = 'table'")}
    if version == 0 and tables:
        raise sqlite3.DatabaseError("it is a database of something else")
    if version in (0, SCHEMA_VERSION):
        connection.execute("pragma journal_mode = wal")
        connection.executescript(SCHEMA)
        connection.execute(f"pragma user_version = {SCHEMA_VERSION}")
    return version


def _get(connection: sqlite3.Connection, table: str, key: str) -> Record | None:
    row = connection.execute(
        "select key, value, version from records where tab = ? and key = ?", (table, key)
    ).fetchone()
    return Record(*row) if row else None


def _put(connection: sqlite3.Connection, table: str, key: str, value: bytes, version: int) -> int:
    connection.execute("begin immediate")
    fresh = int(connection.execute("update versions set next = next + 1 returning next").fetchone()[0])
    if version:
        statement = "update records set value = ?, version = ? where tab = ? and key = ? and version = ?"
        changed = connection.execute(statement, (value, fresh, table, key, version))
    else:
        statement = "insert or ignore into records (value, version, tab, key) values (?, ?, ?, ?)"
        changed = connection.execute(statement, (value, fresh, table, key))
    return fresh if changed.rowcount else 0


def _delete(connection: sqlite3.Connection, table: str, key: str, version: int) -> bool:
    statement = "delete from records where tab = ? and key = ? and version = ?"
    return bool(connection.execute(statement, (table, key, version)).rowcount)


def _records(connection: sqlite3.Connection, table: str, prefix: str) -> list[Record]:
    statement = "select key, value, version from records where tab = ? and substr(key, 1, ?) = ? order by key"
    return [Record(*row) for row in connection.execute(statement, (table, len(prefix), prefix))]


def _append(connection: sqlite3.Connection, entries: Sequence[Entry]) -> list[Entry]:
    connection.execute("begin immediate")
    rows = [(entry.id, entry.tenant, entry.at, entry.value) for entry in entries]
    connection.executemany("insert or ignore into log (id, tenant, at, value) values (?, ?, ?, ?)", rows)
    statement = "select id, tenant, at, value from log where id = ?"
    return [Entry(*connection.execute(statement, (entry.id,)).fetchone()) for entry in entries]


def _entries(
    connection: sqlite3.Connection, tenant: str, begin: float, end: float, offset: int, limit: int
) -> list[Entry]:
    statement = (
        "select id, tenant, at, value from log where tenant = ? and at >= ? and at < ? order by at, id limit ? offset ?"
    )
    return [Entry(*row) for row in connection.execute(statement, (tenant, begin, end, limit, offset))]


def _forget(connection: sqlite3.Connection, before: float) -> int:
    return int(connection.execute("delete from log where at < ?", (before,)).rowcount)
