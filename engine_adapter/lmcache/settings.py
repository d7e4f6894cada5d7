"""What an operator can set in LMCache's `extra_config` for this plugin: `remote_storage_plugin.<name>.<setting>`."""

from collections.abc import Mapping
from typing import Any

from mooncask.engine_adapter.block_store import StoreAddress
from mooncask.errors import ConfigError

DEFAULT_NAME = "mooncask"


def read_address(extra_config: Mapping[str, Any] | None, name: str) -> StoreAddress:
    """`socket`, `deadline_ms` and `mode` of the plugin called `name`. Raises ConfigError for a wrong value."""
    given = extra_config or {}
    prefix = f"remote_storage_plugin.{name}."
    deadline = given.get(f"{prefix}deadline_ms", 2000)
    if not isinstance(deadline, int | float) or not 1 <= deadline <= 600_000:
        raise ConfigError(f"{prefix}deadline_ms", str(deadline), "must be a number of milliseconds from 1 to 600000")
    mode = str(given.get(f"{prefix}mode", ""))
    if mode not in ("", "write_through", "write_back", "memory"):
        raise ConfigError(f"{prefix}mode", mode, "must be write_through, write_back or memory")
    return StoreAddress(str(given.get(f"{prefix}socket", "")), deadline / 1000, mode)
