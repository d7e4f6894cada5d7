"""A mount, its daemon and a client beside it that sees what really is in the store, for tests of the file-system view."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from daemon_process import DaemonProcess
from mount_process import MountProcess

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.wire import BlockStat, NamespaceKind

BLOCK = 64 << 10
SETTINGS = {"dram.capacity": "64 MiB", "nvme.capacity": "512 MiB", "limits.block_max": "2 MiB"}


@contextmanager
def refused(number: int) -> Iterator[None]:
    """What is done in here must fail with this errno."""
    with pytest.raises(OSError) as raised:
        yield
    assert raised.value.errno == number, raised.value


@dataclass
class Mounted:
    """Each test takes namespaces of its own."""

    mount: MountProcess
    daemon: DaemonProcess
    client: LocalClient
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def kv(self, blocks: int = 0, *, hash: str = "sha256") -> "Folder":
        """A KV namespace of its own with one chain of `blocks` random blocks."""
        name = f"kv{next(self.numbers)}"
        handle = self.client.open_namespace(name, {"model": name, "block_tokens": "16"}, hash=hash)
        folder = Folder(self, handle)
        keys = [os.urandom(16) for _ in range(blocks)]
        if keys:
            folder.payloads = {key: os.urandom(BLOCK) for key in keys}
            parents = [b"", *keys[:-1]]
            columns = {"parents": parents, "depths": list(range(blocks)), "tokens": [16] * blocks}
            self.client.put(handle, keys, list(folder.payloads.values()), **columns)
        return folder

    def objects(self, **contents: bytes) -> "Folder":
        handle = self.client.open_namespace(f"objects{next(self.numbers)}", kind=NamespaceKind.OBJECT)
        folder = Folder(self, handle, {name.encode(): content for name, content in contents.items()})
        for key, content in folder.payloads.items():
            self.client.put(handle, [key], [content])
        return folder


@dataclass
class Folder:
    """One namespace by the mount and by the client. `payloads` are what it was made with."""

    mounted: Mounted
    handle: NamespaceHandle
    payloads: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.mounted.mount.path / self.handle.name

    @property
    def blocks(self) -> Path:
        return self.path / "blocks"

    def stored(self, key: bytes) -> bytes | None:
        """What the store has under this key."""
        with self.mounted.client.acquire(self.handle, [key]) as blocks:
            return bytes(blocks[0].memory) if blocks[0] else None

    def stat(self, key: bytes) -> BlockStat | None:
        return self.mounted.client.stat(self.handle, [key])[0]

    def keys(self) -> set[bytes]:
        return {block.key for block in self.mounted.client.list_blocks(self.handle).blocks}


def names(folder: Path) -> list[str]:
    """What is in a folder, in the order in which it is told."""
    return [path.name for path in folder.iterdir()]
