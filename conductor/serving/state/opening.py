"""Which store a `state.url` means."""

import contextlib
from collections.abc import AsyncIterator

from mooncask.conductor.serving.state.sqlite import SqliteState
from mooncask.conductor.serving.state.state import State
from mooncask.conductor.serving.state.valkey import ValkeyState
from mooncask.errors import ConfigError

MEMORY = "memory:"
FILE = "sqlite:///"
SERVERS = ("valkey://", "valkeys://", "redis://", "rediss://")


@contextlib.asynccontextmanager
async def opened_state(url: str, prefix: str, password: str = "") -> AsyncIterator[State]:
    """Closed at the end. Raises ConfigError, StateUnavailable."""
    state = _state(url, prefix, password)
    try:
        await state.open()
        yield state
    finally:
        await state.close()


def _state(url: str, prefix: str, password: str) -> SqliteState | ValkeyState:
    if url == MEMORY:
        return SqliteState(":memory:")
    if url.startswith(FILE) and len(url) > len(FILE):
        return SqliteState(url.removeprefix(FILE))
    if url.startswith(SERVERS):
        return ValkeyState(url, prefix, password)
    allowed = "sqlite:///PATH, valkey://HOST:PORT/DB, redis://HOST:PORT/DB, or memory: (nothing lasts)"
    raise ConfigError("state.url", repr(url), f"must be {allowed}")
