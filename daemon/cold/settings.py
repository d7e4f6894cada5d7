"""What the keys of [cold] must be together. Pure; whether bucket, files and packages are there is found out where they are used."""

import ipaddress
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mooncask.errors import ConfigError

if TYPE_CHECKING:
    from mooncask.daemon.config import ColdSection

PACK_BYTES_MIN = 64 << 10
PACK_BYTES_MAX = 1 << 30
_BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](?:/[A-Za-z0-9._/-]{0,200})?")


def check_cold(cold: "ColdSection") -> None:
    """Raises ConfigError that names the key."""
    if not cold.bucket:
        return
    if not _BUCKET.fullmatch(cold.bucket):
        raise ConfigError("cold.bucket", f'"{cold.bucket}"', 'must be "s3://bucket/prefix", the prefix may be empty')
    _check_access(cold)
    if not PACK_BYTES_MIN <= cold.pack <= PACK_BYTES_MAX:
        raise ConfigError("cold.pack", str(cold.pack), "must be from 64 KiB to 1 GiB")
    if cold.queue_max < 2 * cold.pack:
        raise ConfigError("cold.queue_max", str(cold.queue_max), "must be at least twice cold.pack")
    for key in ("deadline", "refresh", "pack_wait", "dead_after"):
        if getattr(cold, key) <= 0:
            raise ConfigError(f"cold.{key}", "0", "must be a time above 0")


def _check_access(cold: "ColdSection") -> None:
    if cold.endpoint:
        url = urlsplit(cold.endpoint)
        if url.scheme not in ("http", "https") or not url.hostname or url.username is not None:
            raise ConfigError("cold.endpoint", "...", 'must be a URL such as "https://s3.example.org"')
        if url.scheme == "http" and not is_loopback(url.hostname):
            raise ConfigError("cold.endpoint", f'"{cold.endpoint}"', "must be https:// but for loopback addresses")
    if cold.secret and cold.secret_file:
        raise ConfigError("cold.secret", "(not shown)", "must not be set where cold.secret_file is")
    if bool(cold.access_key) != bool(cold.secret or cold.secret_file):
        raise ConfigError("cold.access_key", f'"{cold.access_key}"', "goes with cold.secret or cold.secret_file")


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_bucket(url: str) -> tuple[str, str]:
    """("bucket", "some/prefix") of "s3://bucket/some/prefix"."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return bucket, prefix.strip("/")
