"""From a TOML file and `MOONCASK_<SECTION>_<KEY>` variables to one checked `Config`. The environment wins.

Every error is a ConfigError that names the key, the value and what is allowed. Whether an address or folder can be
used is not known here; whoever opens it says so.
"""

import difflib
import ipaddress
import re
import tomllib
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from mooncask.daemon.cold.settings import check_cold
from mooncask.daemon.config import (
    NOT_SHOWN,
    ClusterSection,
    Config,
    CredentialSection,
    Section,
    TenantSection,
    is_secret,
)
from mooncask.daemon.kv_events.addresses import check_kv_events
from mooncask.daemon.quantities import SIZE_ALLOWED, TIME_ALLOWED, format_size, parse_seconds, parse_size
from mooncask.errors import ConfigError
from mooncask.tiers.block import ALIGNMENT

PREFIX = "MOONCASK_"
OTHERS = frozenset({"MOONCASK_CONFIG", "MOONCASK_SOCKET"})
"""Variables of ours that are no key of a section: `main.py` reads the first, clients the second."""
_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_NAMED: dict[str, type[Section]] = {"tenants": TenantSection, "credentials": CredentialSection}
"""Sections of which there are as many as somebody writes: [tenants.a], [tenants.b]."""
_SECRET_LENGTH_MIN = 8
_ARENA_BYTES_MIN = 1 << 20
_ACCESS_KEY = re.compile("[A-Za-z0-9._-]{3,128}")
_DIRECTORY = re.compile(
    r"(?:redis|valkey)s?://(?:[A-Za-z0-9._~-]+@)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?(?:/\d*)?"
)
"""With a user name at most: what has a password in it would be shown with the rest of the configuration."""
_WILDCARDS = ("0.0.0.0", "::", "")
_DOMAIN = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")

Raw = dict[str, dict[str, object]]


class FromVariable(str):
    """A value that came from the environment: errors name its variable."""

    __slots__ = ()


def load_config(path: Path | None, environment: Mapping[str, str], overrides: Raw | None = None) -> Config:
    """The configuration: file, then environment, then `overrides` (a command line's). Raises ConfigError."""
    raw = _read_file(path) if path else {}
    for section, key, value in _from_environment(environment):
        raw.setdefault(section, {})[key] = FromVariable(value)
    for section, values in (overrides or {}).items():
        raw.setdefault(section, {}).update(values)
    config = _build(raw)
    _check_together(config)
    return config


def split_listen(listen: str, key: str = "http.listen") -> tuple[str, int]:
    """("host", port) of a `http.listen`; ("::1", 80) of "[::1]:80". Raises ConfigError that names `key`."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(key, quoted(listen), 'host:port, such as "127.0.0.1:9470"')
    return host, int(port)


def quoted(value: object) -> str:
    """A value as the message shows it, cut if it is long."""
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 200 else text[:200] + "..."


def hidden(key: str) -> bool:
    """Whether the value of this key must not appear: also that of a misspelled key beside a secret."""
    return is_secret(key) or key.startswith(("credentials.", f"{PREFIX}CREDENTIALS_"))


def shown(key: str, value: object, advice: str = "") -> str:
    """A value as a message about its key shows it. `advice` names the key that a misspelled one may be meant to be."""
    return NOT_SHOWN if hidden(key) or is_secret(advice.rstrip("?")) else quoted(value)


# --- sources ---------------------------------------------------------------------------------------------------------


def _read_file(path: Path) -> Raw:
    try:
        parsed = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("config file", str(path), f"must be readable ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("config file", str(path), f"must be TOML ({error})") from error
    for section, values in parsed.items():
        if not isinstance(values, dict):
            raise ConfigError(section, quoted(values), f"keys live in sections; [{section}] is meant to be one")
    return parsed


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    known = {
        f"{PREFIX}{section}_{field.name}".upper(): (section, field.name)
        for section, kind in _sections().items()
        for field in msgspec.structs.fields(kind)
    }
    for name, value in sorted(environment.items()):
        if not name.startswith(PREFIX) or name in OTHERS:
            continue
        if name in known:
            yield (*known[name], value)
        else:
            _refuse_typo(name, value, list(known))


def _refuse_typo(name: str, value: str, known: list[str]) -> None:
    """A variable that means nothing here may belong to another program, unless it looks like one of ours."""
    section = name.removeprefix(PREFIX).split("_")[0].lower()
    if section in _NAMED:
        raise ConfigError(name, shown(name, value), f"{section} are set in the config file only")
    near = difflib.get_close_matches(name, known, 1, 0.8)
    if near or section in _sections():
        advice = _did_you_mean(name, known)
        raise ConfigError(name, shown(name, value, advice), f"no such variable{advice}")


# --- building --------------------------------------------------------------------------------------------------------


def _sections() -> dict[str, type[Section]]:
    return {field.name: field.type for field in msgspec.structs.fields(Config) if field.name not in _NAMED}


def _build(raw: Raw) -> Config:
    known = _sections()
    built: dict[str, object] = {}
    for name, values in raw.items():
        if name in _NAMED:
            built[name] = {one: _section(f"{name}.{one}", _NAMED[name], v) for one, v in values.items()}
        elif name not in known:
            raise ConfigError(f"[{name}]", "...", f"no such section{_did_you_mean(name, [*known, *_NAMED])}")
        else:
            built[name] = _section(name, known[name], values)
    return Config(**built)  # type: ignore[arg-type]  # each value was built to its field's type above


def _section(name: str, kind: type[Section], values: object) -> Section:
    if not isinstance(values, dict):
        raise ConfigError(f"[{name}]", shown(name, values), "a section with keys")
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in values.items():
        if key not in fields:
            advice = _did_you_mean(key, list(fields))
            raise ConfigError(f"{name}.{key}", shown(f"{name}.{key}", value, advice), f"no such key{advice}")
    return kind(**{key: _value(f"{name}.{key}", value, fields[key]) for key, value in values.items()})


def _value(key: str, value: object, kind: Any) -> object:
    """`value`, from TOML or as a variable's text, as `kind`."""
    info = msgspec.inspect.type_info(kind)
    allowed = _allowed(info)
    try:
        return msgspec.convert(
            _parse(str(value) if isinstance(value, FromVariable) else value, info), kind, strict=True
        )
    except (ValueError, msgspec.ValidationError) as error:
        if isinstance(value, FromVariable):
            key = PREFIX + key.replace(".", "_").upper()
        raise ConfigError(key, shown(key, value), f"must be {allowed}") from None if hidden(key) else error


def _parse(value: object, info: msgspec.inspect.Type) -> object:
    if isinstance(info, msgspec.inspect.Metadata):
        return parse_size(value) if (info.extra or {})["quantity"] == "size" else parse_seconds(value)
    if isinstance(info, msgspec.inspect.FloatType) and isinstance(value, int | str) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        return value
    if isinstance(info, msgspec.inspect.BoolType):
        return _BOOLEANS.get(value.strip().lower(), value)
    if isinstance(info, msgspec.inspect.IntType):
        return int(value)
    if isinstance(info, msgspec.inspect.VarTupleType):
        if isinstance(info.item_type, msgspec.inspect.StrType):
            return [part.strip() for part in value.split(",") if part.strip()]
        return [int(part) for part in value.split(",") if part.strip()]
    return value


def _allowed(info: msgspec.inspect.Type) -> str:
    match info:
        case msgspec.inspect.Metadata(extra=extra):
            return SIZE_ALLOWED if (extra or {})["quantity"] == "size" else TIME_ALLOWED
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.IntType(ge=least, le=most):
            return f"a whole number from {least} to {most}"
        case msgspec.inspect.FloatType():
            return "a number above 0 and at most 1"
        case msgspec.inspect.VarTupleType(item_type=msgspec.inspect.StrType()):
            return 'a list of texts, such as ["10.0.0.1:9471"]'
        case msgspec.inspect.VarTupleType():
            return "a list of user ids, such as [0, 1000]"
        case msgspec.inspect.EnumType(cls=cls):
            return _one_of([str(member.value) for member in cls if isinstance(member, Enum)])
        case msgspec.inspect.StrType(pattern=pattern) if pattern and "|" in pattern:
            return _one_of(pattern.strip("^$()").split("|"))
        case msgspec.inspect.StrType(pattern=pattern) if pattern:
            return 'three octal digits in quotes, such as "0660"'
        case msgspec.inspect.StrType(min_length=least, max_length=most) if most:
            return f"a text of {least or 0} to {most} characters"
        case _:
            return "a text"


def _one_of(words: list[str]) -> str:
    return "one of " + ", ".join(f'"{word}"' for word in words)


def _did_you_mean(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, 1, 0.6)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"


# --- what one key can't know of another ------------------------------------------------------------------------------


def _check_together(config: Config) -> None:
    if config.dram.capacity < _ARENA_BYTES_MIN:
        raise ConfigError(
            "dram.capacity", format_size(config.dram.capacity), f"at least {format_size(_ARENA_BYTES_MIN)}"
        )
    _check_above_zero(config)
    if config.socket.staging % ALIGNMENT:
        raise ConfigError("socket.staging", format_size(config.socket.staging), f"a multiple of {ALIGNMENT} bytes")
    if config.http.enabled:
        _check_listen(config)
    _check_domain(config.http.domain)
    _check_tenants(config.tenants)
    _check_credentials(config.credentials)
    _check_cluster(config.cluster)
    check_cold(config.cold)
    check_kv_events(config.kv_events)


def _check_above_zero(config: Config) -> None:
    """Where 0 does not mean "none" but that nothing would ever work."""
    for key, value, allowed in (
        ("limits.block_max", config.limits.block_max, SIZE_ALLOWED),
        ("limits.lease_max", config.limits.lease_max, TIME_ALLOWED),
        ("http.rate_min", config.http.rate_min, SIZE_ALLOWED),
        ("http.idle", config.http.idle, TIME_ALLOWED),
        ("nvme.dirty_max", config.nvme.dirty_max, SIZE_ALLOWED),
        ("socket.staging", config.socket.staging, SIZE_ALLOWED),
        ("ghosts.window", config.ghosts.window, TIME_ALLOWED),
    ):
        if not value:
            raise ConfigError(key, "0", allowed + " above 0")


def _check_listen(config: Config) -> None:
    """Who may connect: with credentials anybody may try."""
    host, _ = split_listen(config.http.listen)
    if not config.credentials and not _is_loopback(host):
        allowed = "must be a loopback address unless there are [credentials.<access key id>]"
        raise ConfigError("http.listen", quoted(config.http.listen), allowed)
    for key, value, other in (
        ("http.tls_certificate", config.http.tls_certificate, "http.tls_key"),
        ("http.tls_key", config.http.tls_key, "http.tls_certificate"),
    ):
        if not value and (config.http.tls_certificate or config.http.tls_key):
            raise ConfigError(key, quoted(value), f"must be set where {other} is")
    if config.http.admin_token and len(config.http.admin_token) < _SECRET_LENGTH_MIN:
        raise ConfigError("http.admin_token", NOT_SHOWN, f"must have at least {_SECRET_LENGTH_MIN} characters")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_cluster(cluster: ClusterSection) -> None:
    """A node that others reach is one whose name they know, and behind its address stands the cluster's secret."""
    if cluster.secret and cluster.secret_file:
        raise ConfigError("cluster.secret", NOT_SHOWN, "must not be set where cluster.secret_file is")
    if cluster.secret and len(cluster.secret) < _SECRET_LENGTH_MIN:
        raise ConfigError("cluster.secret", NOT_SHOWN, f"must have at least {_SECRET_LENGTH_MIN} characters")
    if cluster.ttl < 1:
        raise ConfigError("cluster.ttl", str(cluster.ttl), f"{TIME_ALLOWED}, of at least one second")
    _check_cluster_addresses(cluster)
    files = {"tls_certificate": cluster.tls_certificate, "tls_key": cluster.tls_key, "tls_ca": cluster.tls_ca}
    missing = [key for key, value in files.items() if not value]
    if missing and len(missing) < len(files):
        others = " and ".join(f"cluster.{key}" for key in files if key not in missing)
        raise ConfigError(f"cluster.{missing[0]}", '""', f"must be set where {others} is")


def _check_cluster_addresses(cluster: ClusterSection) -> None:
    for key, value in (("directory", cluster.directory), ("peers", cluster.peers), ("advertise", cluster.advertise)):
        if value and not cluster.listen:
            raise ConfigError(f"cluster.{key}", "...", "needs cluster.listen: the other nodes ask this one as well")
    if not cluster.listen:
        return
    host, _ = split_listen(cluster.listen, "cluster.listen")
    if not (cluster.secret or cluster.secret_file) and not _is_loopback(host):
        allowed = "must be a loopback address unless there is cluster.secret or cluster.secret_file"
        raise ConfigError("cluster.listen", quoted(cluster.listen), allowed)
    if host in _WILDCARDS and not cluster.advertise:
        raise ConfigError("cluster.advertise", '""', f"must say at which address of {cluster.listen} others find it")
    for key, address in [("advertise", cluster.advertise)] * bool(cluster.advertise) + [
        ("peers", peer) for peer in cluster.peers
    ]:
        host, port = split_listen(address, f"cluster.{key}")
        if port == 0 or host in _WILDCARDS:
            raise ConfigError(
                f"cluster.{key}", quoted(address), "must name an address and a port that others can reach"
            )
    if cluster.directory and cluster.peers:
        raise ConfigError("cluster.peers", quoted(", ".join(cluster.peers)), "is for clusters without a directory")
    for url in filter(None, (part.strip() for part in cluster.directory.split(","))):
        if not _DIRECTORY.fullmatch(url):
            allowed = "redis://, rediss://, valkey:// or valkeys:// with host:port; its password is cluster.directory_password"
            raise ConfigError("cluster.directory", "..." if "@" in url else quoted(url), allowed)


def _check_domain(domain: str) -> None:
    """A host name without port; an address has no labels before it."""
    if domain and (len(domain) > 253 or not _DOMAIN.fullmatch(domain) or domain.rpartition(".")[2].isdigit()):
        raise ConfigError("http.domain", quoted(domain), 'must be a host name such as "s3.example.org"')


def _check_tenants(tenants: Mapping[str, TenantSection]) -> None:
    owner: dict[int, str] = {}
    for name, tenant in tenants.items():
        _check_tenant_name("tenants", name)
        for uid in tenant.uids:
            if uid in owner:
                raise ConfigError(f"tenants.{name}.uids", str(uid), f"is already a user of tenant {owner[uid]}")
            owner[uid] = name


def _check_tenant_name(key: str, name: str) -> None:
    if not name or len(name) > 64 or not name.isprintable():
        raise ConfigError(key, quoted(name), "names of 1 to 64 printable characters")


def _check_credentials(credentials: Mapping[str, CredentialSection]) -> None:
    for name, credential in credentials.items():
        if not _ACCESS_KEY.fullmatch(name):
            allowed = "access key ids have 3 to 128 letters, digits, dots, dashes and underscores"
            raise ConfigError("credentials", quoted(name), allowed)
        _check_tenant_name(f"credentials.{name}.tenant", credential.tenant)
        if bool(credential.secret) == bool(credential.secret_file):
            raise ConfigError(f"credentials.{name}", "...", "needs either secret or secret_file")
        if credential.secret and len(credential.secret) < _SECRET_LENGTH_MIN:
            raise ConfigError(
                f"credentials.{name}.secret", NOT_SHOWN, f"must have at least {_SECRET_LENGTH_MIN} characters"
            )
