"""What a process takes, as Linux counts it."""

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
