"""One contract for every store of the Conductor's state, and what each does on its own."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from directory_server import DirectoryServer

from mooncask.conductor.serving.state.opening import opened_state
from mooncask.conductor.serving.state.state import Entry, Record, State
from mooncask.errors import ConfigError, StateUnavailable


@dataclass
class Place:
    """Where a state is; `durable`: it is there again when it is opened anew."""

    url: str
    durable: bool = True

    @asynccontextmanager
    async def opened(self, prefix: str = "mooncask-conductor") -> AsyncIterator[State]:
        async with opened_state(self.url, prefix) as state:
            yield state


@pytest.fixture(params=["sqlite", "memory", "valkey"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "valkey":
        pytest.importorskip("valkey", reason="valkey is not installed: pip install mooncask[cluster]")
        with DirectoryServer(tmp_path, "--appendonly", "yes") as server:
            yield Place(server.url)
    else:
        yield Place("memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/s.db", request.param != "memory")


async def test_a_record_is_changed_by_who_knows_its_version(place: Place) -> None:
    async with place.opened() as state:
        first = await state.put("caches", "a", b"one", 0)
        assert first > 0
        assert await state.put("caches", "a", b"two", 0) == 0
        second = await state.put("caches", "a", b"two\0\xff", first)
        assert await state.put("caches", "a", b"three", first) == 0
        assert await state.get("caches", "a") == Record("a", b"two\0\xff", second)
        assert await state.get("tags", "a") is None
        assert not await state.delete("caches", "a", first)
        assert await state.delete("caches", "a", second)
        assert await state.get("caches", "a") is None


async def test_a_record_that_was_deleted_and_made_again_has_another_version(place: Place) -> None:
    async with place.opened() as state:
        first = await state.put("caches", "a", b"one", 0)
        await state.delete("caches", "a", first)
        await state.put("caches", "a", b"one", 0)
        assert await state.put("caches", "a", b"late", first) == 0


async def test_of_many_who_claim_at_once_one_succeeds(place: Place) -> None:
    async with place.opened() as state:
        got = await asyncio.gather(*(state.put("caches", "a", bytes([n]), 0) for n in range(20)))
        assert sum(version > 0 for version in got) == 1


async def test_records_are_listed_by_the_beginning_of_their_key(place: Place) -> None:
    async with place.opened() as state:
        for key in ("b/1", "a/2", "a/1", "a%", "ab/1"):
            await state.put("caches", key, key.encode(), 0)
        assert [record.key for record in await state.records("caches", "a/")] == ["a/1", "a/2"]
        assert len(await state.records("caches")) == 5
        assert await state.records("none") == []


async def test_an_id_stands_once_in_the_log(place: Place) -> None:
    async with place.opened() as state:
        one, other = Entry("r1", "t", 5.25, b"one"), Entry("r1", "t", 6.0, b"other")
        assert await state.append([one]) == [one]
        assert await state.append([other, Entry("r2", "t", 4.0, b"x")]) == [one, Entry("r2", "t", 4.0, b"x")]
        assert [entry.id for entry in await state.entries("t", 0.0, 10.0, 0, 10)] == ["r2", "r1"]


async def test_entries_are_found_by_tenant_and_time_a_page_at_a_time(place: Place) -> None:
    async with place.opened() as state:
        await state.append([Entry(f"r{n:02}", "t", float(n), b"") for n in range(20)] + [Entry("o", "other", 3.0, b"")])
        pages = [await state.entries("t", 5.0, 15.0, offset, 4) for offset in (0, 4, 8, 12)]
        assert [entry.id for page in pages for entry in page] == [f"r{n:02}" for n in range(5, 15)]
        assert await state.forget(10.0) == 11
        assert len(await state.entries("t", 0.0, 99.0, 0, 99)) == 10
        assert await state.entries("other", 0.0, 99.0, 0, 99) == []


async def test_what_was_written_is_there_when_it_is_opened_again(place: Place) -> None:
    if not place.durable:
        pytest.skip("this one is in memory: nothing of it lasts")
    async with place.opened() as state:
        version = await state.put("caches", "a", b"one", 0)
        await state.append([Entry("r1", "t", 1.0, b"x")])
    async with place.opened() as state:
        assert await state.get("caches", "a") == Record("a", b"one", version)
        assert len(await state.entries("t", 0.0, 9.0, 0, 9)) == 1


async def test_two_who_have_it_open_see_each_other_s_changes(place: Place) -> None:
    if not place.durable:
        pytest.skip("this one is in memory: each has its own")
    async with place.opened() as one, place.opened() as other:
        version = await one.put("caches", "a", b"one", 0)
        found = await other.get("caches", "a")
        assert found is not None and found.version == version
        claims = await asyncio.gather(*(who.put("caches", "a", b"x", version) for who in (one, other, one, other)))
        assert sum(claim > 0 for claim in claims) == 1


async def test_a_server_that_keeps_no_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("valkey", reason="valkey is not installed: pip install mooncask[cluster]")
    with DirectoryServer(tmp_path) as server, pytest.raises(ConfigError, match="appendonly"):
        async with opened_state(server.url, "p"):
            pass


async def test_the_directory_s_own_database_is_refused_and_another_one_taken(tmp_path: Path) -> None:
    pytest.importorskip("valkey", reason="valkey is not installed: pip install mooncask[cluster]")
    with DirectoryServer(tmp_path, "--appendonly", "yes") as server:
        server.command("HSET", "{mooncask}:nodes", "n1", "x")
        with pytest.raises(ConfigError, match="directory"):
            async with opened_state(server.url + "/0", "p"):
                pass
        async with opened_state(server.url + "/1", "p") as state:
            assert await state.put("t", "k", b"", 0)


async def test_a_server_that_is_gone_is_said_so(tmp_path: Path) -> None:
    pytest.importorskip("valkey", reason="valkey is not installed: pip install mooncask[cluster]")
    with DirectoryServer(tmp_path, "--appendonly", "yes") as server:
        async with opened_state(server.url, "p") as state:
            server.kill()
            with pytest.raises(StateUnavailable, match=r"127\.0\.0\.1"):
                await state.get("t", "k")


@pytest.mark.parametrize("url", ["", "postgres://x", "sqlite:///", "sqlite:////no/such/folder/s.db"])
async def test_what_is_no_place_for_a_state_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"state\.url"):
        async with opened_state(url, "p"):
            pass


async def test_a_file_of_something_else_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with sqlite3.connect(path) as other:
        other.execute("create table mine (x)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="something else"):
        async with opened_state(f"sqlite:///{path}", "p"):
            pass
    assert path.read_bytes() == before


async def test_the_file_is_its_owner_s_alone(tmp_path: Path) -> None:
    async with opened_state(f"sqlite:///{tmp_path}/s.db", "p") as state:
        await state.put("t", "k", b"", 0)
        assert {entry.stat().st_mode & 0o777 for entry in os.scandir(tmp_path)} == {0o600}
