"""The configuration as it is in force, for a caller of one tenant: no secrets, and nothing of other tenants."""

from mooncask.client import control
from mooncask.daemon.config import Config
from mooncask.daemon.reload import RELOADABLE, is_secret, keys

NOT_SHOWN = "(not shown)"
_OTHERS = ("tenants.", "credentials.")
"""Sections of which each belongs to somebody; of credentials not even the names are told."""


def config_page(config: Config, tenant: str, file: str) -> control.ConfigPage:
    """Every key with its value; sizes are bytes and durations seconds."""
    sections: dict[str, dict[str, object]] = {}
    for key, value in keys(config).items():
        section, _, name = key.rpartition(".")
        if section.startswith(_OTHERS) and section != f"tenants.{tenant}":
            continue
        sections.setdefault(section, {})[name] = NOT_SHOWN if _is_secret(key) and value else value
    return control.ConfigPage(sections=sections, file=file, reloadable=list(RELOADABLE))


def _is_secret(key: str) -> bool:
    return is_secret(key) or key.endswith(("secret", "token", "password"))
