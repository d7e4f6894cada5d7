"""A whole daemon inside the test's own loop, for what a test must look at from both sides (`raw_client.py`).

A daemon as a process of its own: `daemon_process.py`.
"""

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raw_client import RawClient

from mooncask.daemon.config import Config
from mooncask.daemon.config_source import load_config
from mooncask.daemon.http.server import HttpServer
from mooncask.daemon.http_doors import HttpDoors
from mooncask.daemon.local_socket import LocalSocket
from mooncask.daemon.main import store_config
from mooncask.daemon.service import Service
from mooncask.daemon.session import LocalPlane
from mooncask.daemon.socket_file import SocketFile
from mooncask.tiers.store import Store

DEFAULTS = {
    "dram.capacity": "32MiB",
    "http.enabled": False,
    "http.listen": "127.0.0.1:0",
    "nvme.capacity": "128MiB",
    "nvme.segment": "16MiB",
    "nvme.direct": False,
}


@dataclass
class LocalDaemon:
    config: Config
    store: Store
    service: Service
    local: LocalSocket
    doors: HttpDoors
    path: str

    @property
    def http(self) -> HttpServer | None:
        return self.doors.server

    @property
    def plane(self) -> LocalPlane:
        return self.local.plane

    async def client(self, token: bytes | None = None, **hello: Any) -> "RawClient":
        return await RawClient.connect(self.path, token, **hello)


@asynccontextmanager
async def running_daemon(settings: dict[str, Any] | None = None) -> AsyncIterator[LocalDaemon]:
    """`settings` by dotted names, as in a config file."""
    folder = Path(tempfile.mkdtemp(prefix="mk"))
    raw: dict[str, dict[str, object]] = {}
    for name, value in {**DEFAULTS, "socket.path": str(folder / "s"), **(settings or {})}.items():
        section, _, key = name.rpartition(".")
        kind, _, one = section.partition(".")
        if one:  # [tenants.x], [credentials.y]
            raw.setdefault(kind, {}).setdefault(one, {})[key] = value  # type: ignore[index]
        else:
            raw.setdefault(section, {})[key] = value
    config = load_config(None, {}, raw)
    file = SocketFile.bind(Path(config.socket.path), int(config.socket.mode, 8))
    store = await Store.open(store_config(config))
    await store.dram.wait_populated()
    service = Service(store, config)
    local = LocalSocket(service, file)
    doors = await HttpDoors.open(config, local.plane, file.path)
    local.start()
    service.ready = True
    try:
        yield LocalDaemon(config, store, service, local, doors, str(file.path))
    finally:
        await local.close()
        await doors.close()
        await service.close()
        await store.close()
        shutil.rmtree(folder)
