"""Data and questions for tests of clients."""

import hashlib
import time
from collections.abc import Callable

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle

PATIENCE_SECONDS = 20.0


def keys_of(count: int, label: str = "") -> list[bytes]:
    """That many block keys, the same for the same label."""
    return [hashlib.sha256(f"{label} {i}".encode()).digest()[:16] for i in range(count)]


def payload_of(key: bytes, size: int = 10_000) -> bytes:
    """Bytes that belong to a key: two keys' differ, and so do a block's pages."""
    return hashlib.shake_128(key).digest(size)


def leases_on(client: LocalClient, namespace: NamespaceHandle, key: bytes) -> int:
    """How many leases the daemon counts on a block, after what this client has to give back."""
    client.flush()
    (found,) = client.stat(namespace, [key])
    assert found is not None
    return found.leases


def until(true: Callable[[], bool], what: str) -> None:
    """Asks again and again; the asking (a call to a daemon, say) is what takes the time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_SECONDS} s"
