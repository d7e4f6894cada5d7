"""The one module that knows the package `valkey`: commands to a single server or to a Cluster, each within its time."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from mooncask.daemon.config import ClusterSection
from mooncask.daemon.directory.cluster_client import ClusterClient
from mooncask.daemon.directory.directory import NodeRecord
from mooncask.daemon.directory.lines import Lines, Words
from mooncask.daemon.directory.parts import Call
from mooncask.daemon.directory.scripts import Script
from mooncask.daemon.directory.valkey import ValkeyDirectory
from mooncask.errors import ConfigError, PeerUnavailable

COMMANDS_MAX = 64
"""Under way at a time, each on a connection of its own; those that are carried out together count as one for each member."""
CONNECT_SECONDS = 1.0


class SingleClient:
    """A server that is alone, as a Cluster of one."""

    def __init__(self, client: Any, lines: Lines) -> None:
        self._client = client
        self._lines = lines

    async def execute_command(self, *arguments: bytes | str | int) -> Any:
        return await self._client.execute_command(*arguments)

    def lines_for(self, keys: Sequence[bytes]) -> list[tuple[Lines, list[int]]]:
        return [(self._lines, list(range(len(keys))))]

    async def aclose(self) -> None:
        await self._lines.close()
        await self._client.aclose()


class ValkeyServer:
    """See `parts.Server`. `again`: failures of a call among others after which it is tried once more, by itself."""

    def __init__(
        self,
        connect: Callable[[], Any],
        sharded: bool,
        failures: tuple[type[Exception], ...],
        no_script: type[Exception],
        again: tuple[type[Exception], ...],
    ) -> None:
        self._connect = connect
        self._client = connect()
        self.sharded = sharded
        self._failures: tuple[type[Exception], ...] = (*failures, OSError, TimeoutError)
        self._no_script = no_script
        self._again = again
        self._slots = asyncio.Semaphore(COMMANDS_MAX)

    async def command(self, *arguments: bytes | str | int, deadline: float) -> Any:
        try:
            async with asyncio.timeout_at(deadline), self._slots:
                return await self._client.execute_command(*arguments)
        except self._failures as error:
            raise _unavailable(error) from error

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

    async def carry_out(self, calls: Sequence[Call], deadline: float) -> list[Any]:
        commands = [_words(call) for call in calls]
        answers: list[Any] = [ConnectionError("no member of the Cluster is known for it")] * len(calls)

        async def ask(lines: Lines, which: list[int]) -> None:
            try:
                async with asyncio.timeout_at(deadline), self._slots:
                    said: Sequence[Any] = await lines.ask([commands[index] for index in which])
            except self._failures as error:
                said = [error] * len(which)
            for index, answer in zip(which, said, strict=True):
                answers[index] = answer

        await _all(ask(*some) for some in self._client.lines_for([call.keys[0] for call in calls]))
        failed = [index for index, answer in enumerate(answers) if isinstance(answer, Exception)]
        for index, answer in zip(
            failed, await _all(self._once_more(calls[index], answers[index], deadline) for index in failed), strict=True
        ):
            answers[index] = answer
        return answers

    async def _once_more(self, call: Call, error: Exception, deadline: float) -> Any:
        """A call that failed among others: its answer, or why there is none."""
        try:
            if not isinstance(error, self._again):
                raise _unavailable(error) from error
            if call.script is not None:
                return await self.run(call.script, call.keys, call.arguments, deadline)
            return await self.command(*_words(call), deadline=deadline)
        except PeerUnavailable as unavailable:
            return unavailable.with_traceback(None)

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


def _words(call: Call) -> Words:
    if call.script is None:
        return ("MGET", *call.keys)
    return ("EVALSHA", call.script.digest, len(call.keys), *call.keys, *call.arguments)


def _unavailable(error: Exception) -> PeerUnavailable:
    return PeerUnavailable("directory", str(error) or "no answer in time")


async def _all(works: Iterator[Awaitable[Any]]) -> list[Any]:
    """Side by side, and when all have ended what each came to; a fault is raised then."""
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, PeerUnavailable):
            raise outcome
    return outcomes


def _server(cluster: ClusterSection) -> ValkeyServer:
    try:
        from libvalkey import pack_command
        from valkey.asyncio import Valkey
        from valkey.asyncio.cluster import ClusterNode, ValkeyCluster
        from valkey.asyncio.connection import parse_url
        from valkey.crc import key_slot
        from valkey.exceptions import AskError, NoScriptError, ResponseError, ValkeyClusterException, ValkeyError
        from valkey.exceptions import ConnectionError as ValkeyConnectionError
    except ImportError as error:
        raise ConfigError("cluster.directory", "...", 'needs "pip install mooncask[cluster]"') from error
    urls = [part.strip() for part in cluster.directory.split(",") if part.strip()]
    password = cluster.directory_password or None
    common: dict[str, Any] = {"password": password, "socket_timeout": None, "socket_connect_timeout": CONNECT_SECONDS}
    failures: tuple[type[Exception], ...] = (ValkeyError, ValkeyClusterException)

    def lines(connect: Callable[[], Any]) -> Lines:
        return Lines(connect, lambda words: bytes(pack_command(tuple(words))), (ValkeyError, OSError), ResponseError)

    if len(urls) == 1:

        def single() -> SingleClient:
            client = Valkey.from_url(urls[0], **common)
            return SingleClient(client, lines(client.connection_pool.make_connection))

        return ValkeyServer(single, False, failures, NoScriptError, (NoScriptError,))
    parsed: list[dict[str, Any]] = [dict(parse_url(url)) for url in urls]
    addresses = [(one.get("host", "localhost"), int(one.get("port", 6379))) for one in parsed]
    if parsed[0].get("username"):
        common["username"] = parsed[0]["username"]
    secure = urls[0].startswith(("rediss:", "valkeys:"))

    def connect() -> Any:
        nodes = [ClusterNode(host, port) for host, port in addresses]
        return ValkeyCluster(startup_nodes=nodes, ssl=secure, require_full_coverage=False, **common)

    moved = (AskError, ValkeyConnectionError)

    def client() -> ClusterClient:
        return ClusterClient(
            connect,
            lambda key: key_slot(key),
            moved,
            lambda member: lines(lambda: member.connection_class(**member.connection_kwargs)),
        )

    return ValkeyServer(client, True, failures, NoScriptError, (NoScriptError, *moved, ConnectionError))
