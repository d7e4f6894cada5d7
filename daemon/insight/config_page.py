"""The configuration as it is in force, for a caller of one tenant: no secrets, and nothing of other tenants."""

from mooncask.client import control
from mooncask.daemon.config import NOT_SHOWN, Config, is_secret
from mooncask.daemon.reload import is_reloadable, keys

_OTHERS = ("tenants.", "credentials.")
"""Sections of which each belongs to somebody; of credentials not even the names are told."""


def config_page(config: Config, tenant: str, file: str) -> control.ConfigPage:
    """Every key with its value; sizes are bytes and durations seconds."""
    sections: dict[str, dict[str, object]] = {}
    for key, value in keys(config).items():
        section, _, name = key.rpartition(".")
        if section.startswith(_OTHERS) and section != f"tenants.{tenant}":
            continue
        sections.setdefault(section, {})[name] = NOT_SHOWN if is_secret(key) and value else value
    named = (f"{section}.{name}" for section, values in sections.items() for name in values)
    reloadable = [key for key in named if is_reloadable(key)]
    return control.ConfigPage(sections=sections, file=file, reloadable=reloadable)
