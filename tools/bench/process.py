"""Processes of the bench: what one takes, as Linux counts it, and how one is started without losing it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def memory_beside_shared(pid: int) -> int:
    """Bytes of RAM that a process has mapped besides shared memory (the arena): its own pages and its code."""
    wanted = {"RssAnon", "RssFile"}
    found = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in wanted:
            found += int(value.split()[0]) << 10
    return found


@contextmanager
def sigterm_waits() -> Iterator[None]:
    """SIGTERM is acted on when this ends: between a child's birth and the moment its Popen is ours, the child would be lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
    if came:
        signal.raise_signal(signal.SIGTERM)
