"""Which addresses [kv_events] may name. Pure; whether one can be used is found out when it is opened."""

import ipaddress
import re

from mooncask.daemon.config import KvEventsSection
from mooncask.errors import ConfigError

ALLOWED = 'tcp://host:port, such as "tcp://127.0.0.1:5557", or ipc:///path'
_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+|\*):(\d{1,5})")
_IPC = re.compile(r"ipc:///[^\0]{1,100}")


def check_kv_events(section: KvEventsSection) -> None:
    """Raises ConfigError. Who can connect reads the tokens of prompts: elsewhere than on loopback only if asked for in so many words."""
    if section.replay_endpoint and not section.endpoint:
        raise ConfigError("kv_events.replay_endpoint", f'"{section.replay_endpoint}"', "needs kv_events.endpoint")
    listens = {"replay_endpoint": section.replay_endpoint}
    if section.connect:
        _host("kv_events.endpoint", section.endpoint)
    else:
        listens["endpoint"] = section.endpoint
    for key, address in listens.items():
        host = _host(f"kv_events.{key}", address) if address else ""
        if host and not section.public and not _is_loopback(host):
            allowed = (
                "must be a loopback address unless kv_events.public = true: whoever connects can read prompts' tokens"
            )
            raise ConfigError(f"kv_events.{key}", f'"{address}"', allowed)


def _host(key: str, address: str) -> str:
    """Empty for a Unix socket."""
    found = _TCP.fullmatch(address)
    if found is not None and int(found[2]) <= 65535:
        return found[1].strip("[]")
    if _IPC.fullmatch(address):
        return ""
    raise ConfigError(key, f'"{address[:200]}"', ALLOWED)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
