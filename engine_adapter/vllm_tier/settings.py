"""What an operator can set for the tier beside vLLM's own fields, checked by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from mooncask.errors import ConfigError

MODES = ("", "write_through", "write_back", "memory")


@dataclass(frozen=True, slots=True)
class TierSettings:
    """`lookup_deadline_ms` bounds a question, during which vLLM lets the request wait; `deadline_ms` bounds a transfer."""

    socket: str = ""
    deadline_ms: float = 2000.0
    lookup_deadline_ms: float = 200.0
    mode: str = ""
    threads: int = 4
    jobs_max: int = 64
    """Transfers that may wait; a store beyond that is dropped."""
    locality: str = ""
    """vLLM's field for its events; not used here."""
    family: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Raises ConfigError for a name that is none and for a value that is wrong."""
        known = {one.name for one in fields(cls)}
        for name in given:
            if name not in known:
                raise ConfigError(name, str(given[name]), f"is no setting of the tier; there are {', '.join(known)}")
        found = cls(**given)
        for name, low, high in (
            ("deadline_ms", 1, 600_000),
            ("lookup_deadline_ms", 1, 60_000),
            ("threads", 1, 64),
            ("jobs_max", 1, 100_000),
        ):
            value = getattr(found, name)
            if not isinstance(value, int | float) or not low <= value <= high:
                raise ConfigError(name, str(value), f"must be a number from {low} to {high}")
        if found.mode not in MODES:
            raise ConfigError("mode", found.mode, f"must be one of {', '.join(MODES[1:])}")
        return found

    @property
    def deadline_seconds(self) -> float:
        return self.deadline_ms / 1000

    @property
    def lookup_seconds(self) -> float:
        return self.lookup_deadline_ms / 1000
