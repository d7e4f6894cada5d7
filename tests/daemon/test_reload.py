"""SIGHUP: what changes at once, what is refused with everything as it was, and that no secret is said on the way."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from child_processes import until
from daemon_process import DaemonProcess
from http_door import Http, running_http
from local_daemon import LocalDaemon, running_daemon
from service_manager import ServiceManager

from mooncask.client.family import Family
from mooncask.client.local import LocalClient
from mooncask.client.wire import NamespaceKind
from mooncask.daemon.config import Config
from mooncask.daemon.config_source import load_config
from mooncask.daemon.reload import RELOADABLE, Reloader, changes, is_reloadable, keys, live_parts
from mooncask.errors import ConfigError, QuotaExceeded


def config(**sections: dict[str, Any]) -> Config:
    return load_config(None, {}, sections)


def reloader(daemon: LocalDaemon, **sections: dict[str, Any]) -> Reloader:
    """One that finds `sections` changed, beside what the daemon was started with."""
    raw: dict[str, Any] = {}
    for key, value in keys(daemon.config).items():
        section, _, name = key.partition(".")
        if section != "tenants":
            raw.setdefault(section, {})[name] = (
                list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Enum) else value
            )
    for section, values in sections.items():
        raw.setdefault(section, {}).update(values)
    return Reloader(daemon.config, lambda: load_config(None, {}, raw), live_parts(daemon.plane))


# --- what differs, and what may ---------------------------------------------------------------------------------------


def test_changes_are_named_by_key_with_old_and_new_value() -> None:
    before = config(log={"level": "info"}, tenants={"a": {"quota": 5}})
    after = config(log={"level": "debug"}, tenants={"a": {"quota": 6}, "b": {"uids": [7]}})
    assert [str(change) for change in changes(before, after)] == [
        'log.level "info" -> "debug"',
        "tenants.a.quota 5 -> 6",
        "tenants.b.quota (none) -> 0",
        "tenants.b.uids (none) -> (7,)",
    ]
    assert list(changes(after, after)) == []


def test_every_reloadable_key_exists() -> None:
    known = keys(config(tenants={"a": {}}, credentials={"KEYS": {"secret": "a" * 8}}))
    for pattern in RELOADABLE:
        assert pattern.replace("tenants.*", "tenants.a").replace("credentials.*", "credentials.KEYS") in known


def test_sizes_and_addresses_need_a_restart() -> None:
    fixed = ("dram.capacity", "nvme.path", "nvme.capacity", "http.listen", "socket.path", "socket.mode", "node.name")
    assert [key for key in fixed if is_reloadable(key)] == []
    assert is_reloadable("tenants.team-a.quota") and not is_reloadable("tenants.team-a.name")


def test_a_changed_secret_is_named_and_not_shown() -> None:
    before = config(credentials={"KEYS": {"secret": "old-secret"}}, http={"admin_token": "old-token"})
    after = config(credentials={"KEYS": {"secret": "new-secret"}}, http={"admin_token": "new-token"})
    text = ", ".join(map(str, changes(before, after)))
    assert "credentials.KEYS.secret" in text and "http.admin_token" in text
    assert "new-" not in text and "old-" not in text


# --- one step -----------------------------------------------------------------------------------------------------------


async def test_a_key_that_needs_a_restart_is_named_and_nothing_of_the_reload_is_taken() -> None:
    async with running_daemon() as daemon:
        with pytest.raises(ConfigError) as caught:
            await reloader(daemon, dram={"capacity": "64MiB"}, promotion={"promote_after": 9}).reload()
        assert caught.value.message == "dram.capacity = 67108864: needs a restart (in force: 33554432)"
        assert daemon.service.config is daemon.config


async def test_a_part_that_cannot_take_it_keeps_all_others_as_they_are() -> None:
    async def refuses(config: Config) -> Callable[[], None]:
        raise ConfigError("http.requests_max", "1", "not today")

    async with running_daemon() as daemon:
        load = reloader(daemon, http={"requests_max": 1}).load
        found = Reloader(daemon.config, load, [*live_parts(daemon.plane), refuses])
        with pytest.raises(ConfigError, match="not today"):
            await found.reload()
        assert daemon.service.config is daemon.config


async def test_two_reloads_after_each_other_start_from_what_is_in_force() -> None:
    async with running_daemon() as daemon:
        found = reloader(daemon, promotion={"promote_after": 9})
        assert await found.reload() == "promotion.promote_after 2 -> 9"
        assert daemon.service.config.promotion.promote_after == 9
        assert await found.reload() == "no key has changed"


# --- what takes effect ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def unfinished_put(http: Http) -> AsyncIterator[asyncio.StreamReader]:
    """A request under way whose body does not come."""
    host, port = http.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"PUT /photos/k HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
    try:
        yield reader
    finally:
        writer.close()
        await writer.wait_closed()


async def status_of(http: Http, method: str, path: str) -> int:
    status, _, _ = await http.ask(method, path)
    return status


async def test_the_bound_of_http_requests_is_the_new_one() -> None:
    async with running_http() as http:
        assert await status_of(http, "PUT", "/photos") == 200
        async with unfinished_put(http):
            await until(lambda: http.daemon.service.reserved_bytes("default") == 10)
            await reloader(http.daemon, http={"requests_max": 1}).reload()
            assert await status_of(http, "GET", "/") == 503
            await reloader(http.daemon, http={"requests_max": 2}).reload()
            assert await status_of(http, "GET", "/") == 200


async def test_a_body_that_does_not_come_is_given_up_by_the_new_rate() -> None:
    async with running_http({"http.grace": 3600.0}) as http:
        assert await status_of(http, "PUT", "/photos") == 200
        await reloader(http.daemon, http={"grace": 0, "rate_min": 1 << 40}).reload()
        async with unfinished_put(http) as reader:
            assert await asyncio.wait_for(reader.readline(), 20.0) != b"HTTP/1.1 200 OK\r\n"


async def test_blocks_are_promoted_by_the_new_count(tmp_path: Path) -> None:
    async with running_daemon({"nvme.path": str(tmp_path), "promotion.promote_after": 1000}) as daemon:
        parts = daemon.store._parts
        assert parts.bring_up is not None and parts.bring_up.promote_after == 1000
        await reloader(daemon, promotion={"promote_after": 3}).reload()
        assert parts.bring_up.promote_after == 3


async def test_a_scrub_that_was_off_begins_and_one_that_crawls_hurries(tmp_path: Path) -> None:
    async with running_daemon({"nvme.path": str(tmp_path), "nvme.scrub_rate": 0}) as daemon:
        client = await daemon.client()
        namespace = await client.open("kv-test")
        await client.put(namespace, {bytes([i]) * 16: b"x" * 1000 for i in range(4)})
        assert daemon.store.counters["scrubbed_bytes"] == 0
        crawling = reloader(daemon, nvme={"scrub_rate": 1})
        await crawling.reload()
        await until(lambda: daemon.store.counters["scrubbed_bytes"] == 1000)
        await reloader(daemon, nvme={"scrub_rate": "1GiB"}).reload()
        await until(lambda: daemon.store.counters["scrubbed_bytes"] >= 4000)
        await client.close()


# --- the whole process ----------------------------------------------------------------------------------------------------


class Reloadable:
    """A daemon whose file a test rewrites; it waits for what the service manager is told."""

    def __init__(self, daemon: DaemonProcess, manager: ServiceManager) -> None:
        self.daemon, self.manager = daemon, manager
        manager.wait_for("READY=1")

    def reload(self, more: str = "", replace: tuple[str, str] = ("", "")) -> str:
        """Writes the file and signals; the status afterwards."""
        path = self.daemon.config_path
        path.write_text(path.read_text().replace(*replace) + more)
        os.kill(self.daemon.pid, signal.SIGHUP)
        return self.manager.status()


def test_log_level_and_form_change_and_the_log_says_what_changed(tmp_path: Path) -> None:
    with ServiceManager() as manager, DaemonProcess.start(tmp_path, {}, manager.environment) as daemon:
        one = Reloadable(daemon, manager)
        assert one.reload('[log]\nlevel = "debug"\njson = true\n') == (
            'reloaded: log.json False -> True, log.level "info" -> "debug"'
        )
        assert '"message": "reloaded: log.json' in daemon.log()
        LocalClient.connect(daemon.socket_path, name="after").close()
        assert daemon.stop() == 0
        assert '"level": "debug"' in daemon.log()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ('[node]\nname = "other"\n', ["node.name", '"other"', "needs a restart"]),
        ('[log]\nlevel = "loud"\n', ["log.level", '"loud"', "one of"]),
        ("[log\n", ["config file", "TOML"]),
    ],
)
def test_what_cannot_be_reloaded_is_one_line_and_the_daemon_goes_on(tmp_path: Path, more: str, says: list[str]) -> None:
    with ServiceManager() as manager, DaemonProcess.start(tmp_path, {}, manager.environment) as daemon:
        status = Reloadable(daemon, manager).reload(more)
        assert status.startswith("reload refused, nothing has changed: ")
        assert [part for part in says if part not in status] == [], status
        assert sum(status in line for line in daemon.log().splitlines()) == 1 and "Traceback" not in daemon.log()
        LocalClient.connect(daemon.socket_path).close()


def test_a_raised_quota_lets_a_refused_tenant_write(tmp_path: Path) -> None:
    uid = os.getuid()
    with ServiceManager() as manager, DaemonProcess.start(tmp_path, {}, manager.environment) as daemon:
        one = Reloadable(daemon, manager)
        assert "tenants.team.quota (none) -> 1000" in one.reload(f"[tenants.team]\nuids = [{uid}]\nquota = 1000\n")
        with LocalClient.connect(daemon.socket_path) as client:
            namespace = client.open_namespace(name="kv-test", family=Family(model="m"), shard="")
            with pytest.raises(QuotaExceeded):
                client.put(namespace, [b"k" * 16], [bytes(2000)])
            assert one.reload(replace=("quota = 1000", "quota = 10000")) == "reloaded: tenants.team.quota 1000 -> 10000"
            client.put(namespace, [b"k" * 16], [bytes(2000)])


def test_a_user_who_is_connected_keeps_his_tenant(tmp_path: Path) -> None:
    uid = os.getuid()
    with ServiceManager() as manager, DaemonProcess.start(tmp_path, {}, manager.environment) as daemon:
        one = Reloadable(daemon, manager)
        with LocalClient.connect(daemon.socket_path) as client:
            client.open_namespace(name="photos", kind=NamespaceKind.OBJECT)
            status = one.reload(f"[tenants.team]\nuids = [{uid}]\n")
            assert f"tenants.team.uids = {uid}: process {os.getpid()} of this user is connected" in status
        assert one.reload().startswith("reloaded: ")
        with LocalClient.connect(daemon.socket_path) as client:
            assert client.open_namespace(name="mine", kind=NamespaceKind.OBJECT).opened.tenant == "team"
