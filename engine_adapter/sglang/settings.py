"""What an operator can set in `--hicache-storage-backend-extra-config` beside SGLang's own fields."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mooncask.engine_adapter.block_store import StoreAddress
from mooncask.errors import ConfigError

MODES = ("", "write_through", "write_back", "memory")


@dataclass(frozen=True, slots=True)
class Settings:
    """`zero_copy` is SGLang's `interface_v1`; `family` are further fields that must be equal for pages to be exchanged."""

    address: StoreAddress
    zero_copy: bool = False
    family: Mapping[str, str] = field(default_factory=dict)


def read_settings(given: Mapping[str, Any] | None) -> Settings:
    """Raises ConfigError for a wrong value; fields of SGLang's that are none of ours are left alone."""
    found = dict(given or {})
    deadline = found.get("deadline_ms", 2000)
    if not isinstance(deadline, int | float) or not 1 <= deadline <= 600_000:
        raise ConfigError("deadline_ms", str(deadline), "must be a number of milliseconds from 1 to 600000")
    mode = str(found.get("mode", ""))
    if mode not in MODES:
        raise ConfigError("mode", mode, f"must be one of {', '.join(MODES[1:])}")
    family = found.get("family", {})
    if not isinstance(family, Mapping):
        raise ConfigError("family", str(family), "must be an object of names and texts")
    return Settings(
        StoreAddress(str(found.get("socket", "")), deadline / 1000, mode),
        bool(found.get("interface_v1", 0)),
        {str(name): str(value) for name, value in family.items()},
    )
