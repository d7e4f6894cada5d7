"""The one module that knows the package `valkey`: commands to a single server or to a Cluster, each within its time."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mooncask.daemon.config import ClusterSection
from mooncask.daemon.directory.cluster_client import ClusterClient
from mooncask.daemon.directory.directory import NodeRecord
from mooncask.daemon.directory.scripts import Script
from mooncask.daemon.directory.valkey import ValkeyDirectory
from mooncask.errors import ConfigError, PeerUnavailable

COMMANDS_MAX = 64
"""Under way at a time, each on a connection of its own."""
CONNECT_SECONDS = 1.0


class ValkeyServer:
    """See `parts.Server`."""

    def __init__(
        self,
        connect: Callable[[], Any],
        sharded: bool,
        failures: tuple[type[Exception], ...],
        no_script: type[Exception],
    ) -> None:
        self._connect = connect
        self._client = connect()
        self.sharded = sharded
        self._failures: tuple[type[Exception], ...] = (*failures, OSError, TimeoutError)
        self._no_script = no_script
        self._slots = asyncio.Semaphore(COMMANDS_MAX)

    async def command(self, *arguments: bytes | str | int, deadline: float) -> Any:
        try:
            async with asyncio.timeout_at(deadline), self._slots:
                return await self._client.execute_command(*arguments)
        except self._failures as error:
            raise PeerUnavailable("directory", str(error) or "no answer in time") from error

    async def run(
        self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes | int], deadline: float
    ) -> Any:
        rest = (len(keys), *keys, *arguments)
        try:
            return await self.command("EVALSHA", script.digest, *rest, deadline=deadline)
        except PeerUnavailable as error:
            if not isinstance(error.__cause__, self._no_script):
                raise
        return await self.command("EVAL", script.text, *rest, deadline=deadline)

    async def runs(self, deadline: float) -> set[str]:
        nodes = self._client.get_primaries()
        answers = await asyncio.gather(*(self._run_of(node, deadline) for node in nodes))
        return {answer for answer in answers if answer}

    async def _run_of(self, node: Any, deadline: float) -> str:
        try:
            async with asyncio.timeout_at(deadline), self._slots:
                return str((await node.execute_command("INFO", "server")).get("run_id", ""))
        except self._failures:
            return ""

    async def renew(self) -> None:
        if self.sharded:
            lost, self._client = self._client, self._connect()
            await lost.aclose()

    async def close(self) -> None:
        await self._client.aclose()


def open_valkey_directory(
    cluster: ClusterSection,
    record: Callable[[], NodeRecord],
    held: Callable[[], Iterator[tuple[bytes, Sequence[bytes]]]],
    counters: Counter[str],
) -> ValkeyDirectory:
    """Connects to nothing yet: a server that is down does not keep a daemon from starting. Raises ConfigError."""
    return ValkeyDirectory(_server(cluster), record, held, counters, cluster.ttl)


def _server(cluster: ClusterSection) -> ValkeyServer:
    try:
        from valkey.asyncio import Valkey
        from valkey.asyncio.cluster import ClusterNode, ValkeyCluster
        from valkey.asyncio.connection import parse_url
        from valkey.crc import key_slot
        from valkey.exceptions import AskError, NoScriptError, ValkeyClusterException, ValkeyError
        from valkey.exceptions import ConnectionError as ValkeyConnectionError
    except ImportError as error:
        raise ConfigError("cluster.directory", "...", 'needs "pip install mooncask[cluster]"') from error
    urls = [part.strip() for part in cluster.directory.split(",") if part.strip()]
    password = cluster.directory_password or None
    common: dict[str, Any] = {"password": password, "socket_timeout": None, "socket_connect_timeout": CONNECT_SECONDS}
    if len(urls) == 1:
        return ValkeyServer(lambda: Valkey.from_url(urls[0], **common), False, (ValkeyError,), NoScriptError)
    parsed: list[dict[str, Any]] = [dict(parse_url(url)) for url in urls]
    addresses = [(one.get("host", "localhost"), int(one.get("port", 6379))) for one in parsed]
    if parsed[0].get("username"):
        common["username"] = parsed[0]["username"]
    secure = urls[0].startswith(("rediss:", "valkeys:"))

    def connect() -> Any:
        nodes = [ClusterNode(host, port) for host, port in addresses]
        return ValkeyCluster(startup_nodes=nodes, ssl=secure, require_full_coverage=False, **common)

    def client() -> ClusterClient:
        return ClusterClient(connect, lambda key: key_slot(key), (AskError, ValkeyConnectionError))

    return ValkeyServer(client, True, (ValkeyError, ValkeyClusterException), NoScriptError)
