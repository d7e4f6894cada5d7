"""A SIGHUP: a new configuration is read, checked against what a running daemon can change, and put into force in one step.

The configuration stays frozen: a reload builds a second one as the start did, with the same file and environment. Either all
of it comes into force, or nothing has changed and one line says why. Who reads `service.config` at each request sees the new
one by itself; who keeps something made from it takes part as a `Prepare`.

Not here: which signal asks for it and what the service manager is told (`main.py`).
"""

import asyncio
import fnmatch
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from mooncask.daemon.config import Config
from mooncask.daemon.config_source import shown
from mooncask.daemon.logs import set_up_logging
from mooncask.daemon.namespace_door import DEFAULT_TENANT, tenants_by_uid
from mooncask.daemon.service import Service
from mooncask.daemon.session import LocalPlane
from mooncask.errors import ConfigError

log = logging.getLogger(__name__)

RELOADABLE = (
    "credentials.*.rights",
    "credentials.*.secret",
    "credentials.*.secret_file",
    "credentials.*.tenant",
    "http.admin_token",
    "http.connections_max",
    "http.domain",
    "http.grace",
    "http.rate_min",
    "http.requests_max",
    "http.tls_certificate",
    "http.tls_key",
    "limits.acquire_deadline_max",
    "limits.requests_open_max",
    "limits.reserve_deadline_max",
    "log.json",
    "log.level",
    "nvme.dirty_max",
    "nvme.scrub_rate",
    "promotion.promote_after",
    "s3.ack",
    "s3.region",
    "shutdown.flush_seconds",
    "socket.clients_max",
    "tenants.*.quota",
    "tenants.*.uids",
)
"""Keys that SIGHUP can change. Not among them: what sizes memory and disk, where the daemon listens, and what clients were
told at their Hello (limits.batch_max, limits.block_max, limits.lease_max). A port that speaks TLS goes on doing so."""

Apply = Callable[[], None]
Prepare = Callable[[Config], Awaitable[Apply]]
"""Makes ready for a configuration and changes nothing; raises MooncaskError for one that can't be used. What it returns puts
it into force, and can't fail."""

_ABSENT = "(none)"
_READ_AGAIN = "; the files of secrets and certificates were read again"
_TLS = ("http.tls_certificate", "http.tls_key")


class Change(NamedTuple):
    """One key with its old and new value as text; a secret's are not in it."""

    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.key} {self.before} -> {self.after}"


class Reloader:
    """Owns the way from one configuration to the next. `load` reads files: it runs in a thread."""

    def __init__(self, current: Config, load: Callable[[], Config], parts: Sequence[Prepare]) -> None:
        self._current = current
        self.load = load
        self._parts = parts

    async def reload(self) -> str:
        """What changed, in one line. Raises MooncaskError; then everything is as it was."""
        config = await asyncio.to_thread(self.load)
        found = list(changes(self._current, config))
        _refuse_fixed(found)
        applies = [await prepare(config) for prepare in self._parts]
        for apply in applies:
            apply()
        self._current = config
        return ", ".join(map(str, found)) or "no key has changed" + _READ_AGAIN * _names_files(config)


def live_parts(plane: LocalPlane) -> list[Prepare]:
    """Those that every daemon has. The last has no await: whose tenant a process is can't change before it is in force."""
    return [_log_part, _part_of_store(plane.service), _part_of_service(plane)]


def _part_of_service(plane: LocalPlane) -> Prepare:
    """Everything that is read from `service.config`, and whose tenant a local user is."""

    async def prepare(config: Config) -> Apply:
        _refuse_moving_connected(plane, config)

        def apply() -> None:
            plane.service.config = config
            plane.service.door.reconfigure(config)

        return apply

    return prepare


def _refuse_moving_connected(plane: LocalPlane, config: Config) -> None:
    """A connected process keeps its tenant, with the namespaces and leases that it has in its name."""
    tenant_by_uid = tenants_by_uid(config)
    for process in plane.processes:
        tenant = tenant_by_uid.get(process.peer.uid, DEFAULT_TENANT)
        if tenant != process.tenant:
            raise ConfigError(
                f"tenants.{tenant}.uids" if tenant != DEFAULT_TENANT else f"tenants.{process.tenant}.uids",
                str(process.peer.uid),
                f"process {process.peer.pid} of this user is connected as tenant {process.tenant}; stop it first",
            )


def _part_of_store(service: Service) -> Prepare:
    async def prepare(config: Config) -> Apply:
        return lambda: service.store.tune(
            config.promotion.promote_after, config.nvme.dirty_max, float(config.nvme.scrub_rate)
        )

    return prepare


async def _log_part(config: Config) -> Apply:
    return lambda: set_up_logging(config.log)


def changes(before: Config, after: Config) -> Iterator[Change]:
    """Every key whose value differs, in the order of their names; keys of a tenant that came or went are among them."""
    old, new = keys(before), keys(after)
    for key in sorted({*old, *new}):
        if old.get(key, _ABSENT) != new.get(key, _ABSENT):
            yield Change(key, _shown(key, old), _shown(key, new))


def keys(config: Config) -> dict[str, object]:
    """Every key by its dotted name: "dram.capacity", "tenants.team-a.quota"."""
    found: dict[str, object] = {}
    for name, section in msgspec.structs.asdict(config).items():
        sections = (
            {f"{name}.{key}": one for key, one in section.items()} if isinstance(section, dict) else {name: section}
        )
        for prefix, one in sections.items():
            found |= {f"{prefix}.{key}": value for key, value in msgspec.structs.asdict(one).items()}
    return found


def is_reloadable(key: str) -> bool:
    return _matches(key, RELOADABLE)


def _refuse_fixed(found: Iterable[Change]) -> None:
    fixed = [change for change in found if not is_reloadable(change.key) or _turns_tls(change)]
    if fixed:
        raise ConfigError(
            ", ".join(change.key for change in fixed),
            ", ".join(change.after for change in fixed),
            f"needs a restart (in force: {', '.join(change.before for change in fixed)})",
        )


def _names_files(config: Config) -> bool:
    return bool(config.http.tls_certificate) or any(one.secret_file for one in config.credentials.values())


def _turns_tls(change: Change) -> bool:
    """On or off: other files in the place of files are no such change."""
    return change.key in _TLS and '""' in (change.before, change.after)


def _shown(key: str, values: Mapping[str, object]) -> str:
    return shown(key, values[key]) if key in values else _ABSENT


def _matches(key: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)
