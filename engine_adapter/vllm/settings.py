"""The connector's settings: what stands in `kv_connector_extra_config`. Everything has a default; an unknown name is an error."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from mooncask.errors import ConfigError

LOAD_MODES = ("async", "layerwise")
LOAD_POLICIES = ("auto", "always", "never")
POSITIVE = (
    "deadline_ms", "load_deadline_ms", "lease_bytes", "threads", "pinned_bytes", "save_backlog_max", "capture_bytes"
)  # fmt: skip
MODES = ("", "write_through", "write_back", "memory")


@dataclass(frozen=True, slots=True)
class ConnectorSettings:
    socket: str = ""
    """The daemon's socket; empty: where this user's daemon listens."""
    namespace: str = ""
    """Empty: the daemon names it by family, shard and tenant."""
    mode: str = ""
    """Of a namespace that is made now: write_through, write_back or memory; empty: the daemon's default."""
    tenant: str = ""
    """Who the daemon must take this process for; empty: whoever it takes it for."""
    deadline_ms: int = 1000
    """How long a look-up may hold a request back, and how long one call of the daemon may take."""
    load_deadline_ms: int = 10_000
    """How long all loading of one request may take; what is missing then is computed."""
    lease_bytes: int = 64 << 20
    """Bytes of a shard that are leased, loaded or saved at a time."""
    threads: int = 4
    """Threads that load, and as many that look up; one saves."""
    pinned_bytes: int = 128 << 20
    """Host memory for copies from and to a GPU, half each way; none when the KV cache is in CPU memory."""
    save_backlog_max: int = 64
    """Saves that may wait; one more is dropped and counted."""
    save_generated: bool = True
    """Whether blocks with generated tokens are saved too: the next turn of a conversation begins with them."""
    load: str = "auto"
    """auto: load what is faster to load than to compute; always; never."""
    load_mode: str = "async"
    """async: a request is loaded before it is computed, beside others' steps; layerwise: in the step that computes it, each
    layer waiting for its own KV, if all of it fits into one lease."""
    capture_bytes: int = 256 << 20
    """Memory for blocks that sliding windows have left behind, and vLLM takes back, before they are saved."""
    publish_tokens: bool = False
    """Whether routers that follow the daemon's KV events are told the tokens of plain blocks (docs/KV-EVENTS.md)."""
    verify: bool = False
    """Whether blocks that are in DRAM already are checked again before they are loaded."""

    @classmethod
    def parse(cls, extra: Mapping[str, Any]) -> Self:
        """Raises ConfigError for a name that does not exist and a value that is not allowed."""
        allowed = {field.name: field.type for field in fields(cls)}
        for name, value in extra.items():
            if name not in allowed:
                raise ConfigError(_key(name), repr(value), f"no such setting; there are {', '.join(sorted(allowed))}")
            wanted: Any = allowed[name]
            if type(value) is not wanted:
                raise ConfigError(_key(name), repr(value), f"a value of type {wanted.__name__}")
        settings = cls(**extra)
        settings._check()
        return settings

    def _check(self) -> None:
        for name in POSITIVE:
            if getattr(self, name) < 1:
                raise ConfigError(_key(name), str(getattr(self, name)), "at least 1")
        if self.load not in LOAD_POLICIES:
            raise ConfigError(_key("load"), repr(self.load), f"one of {', '.join(LOAD_POLICIES)}")
        if self.load_mode not in LOAD_MODES:
            raise ConfigError(_key("load_mode"), repr(self.load_mode), f"one of {', '.join(LOAD_MODES)}")
        if self.mode not in MODES:
            raise ConfigError(_key("mode"), repr(self.mode), f"one of {', '.join(MODES[1:])}, or empty")

    @property
    def layerwise(self) -> bool:
        return self.load_mode == "layerwise"

    @property
    def deadline_seconds(self) -> float:
        return self.deadline_ms / 1000

    @property
    def load_deadline_seconds(self) -> float:
        return self.load_deadline_ms / 1000


def _key(name: str) -> str:
    return f"kv_connector_extra_config.{name}"
