"""Faults of the network between the nodes of a cluster, one after the other as dice fall: in network namespaces where they can be
made, by a proxy before each node where not."""

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol, Self

from cluster_nodes import ClusterNodes, free_port
from daemon_process import DaemonProcess, Setting
from directory_server import DirectoryServer
from network_places import Network, why_no_places
from peer_proxy import Proxy, proxy_to
from placed_nodes import PlacedNodes

NAMES = ("n1", "n2", "n3")
SLOW_BYTES_A_SECOND = 2 << 20
TTL = "2s"


class FaultyNetwork(Protocol):
    """Three nodes, not started yet, and their directory."""

    directory: DirectoryServer
    nodes: ClusterNodes

    def fault(self, dice: random.Random) -> AbstractContextManager[str]:
        """The network has one fault inside; what it is."""
        ...


@contextmanager
def faulty_network(folder: Path) -> Iterator[FaultyNetwork]:
    with _Placed(folder) if not why_no_places() else _Proxied(folder) as network:
        yield network


class _Placed:
    """In namespaces: any pair cut, a node or the directory out of reach of all, a node that sends slowly."""

    def __init__(self, folder: Path) -> None:
        self._stack = contextlib.ExitStack()
        self._network = self._stack.enter_context(Network(*NAMES, "directory"))
        try:
            server = DirectoryServer(folder, place=self._network["directory"])
            self.directory = self._stack.enter_context(server)
            self.nodes: ClusterNodes = self._stack.enter_context(
                PlacedNodes(folder, self._network, directory=server.url)
            )
        except BaseException:
            self._stack.close()
            raise

    @contextmanager
    def fault(self, dice: random.Random) -> Iterator[str]:
        network, kind = self._network, dice.choice(["cut", "cut", "cut", "unplug", "slow"])
        one, other = dice.sample([*NAMES, "directory"], 2)
        match kind:
            case "cut":
                network.cut(one, other)
            case "unplug":
                network.pull_plug(one)
            case _:
                network.slow(one, SLOW_BYTES_A_SECOND)
        try:
            yield f"{kind} {one} {other}"
        finally:
            match kind:
                case "cut":
                    network.heal(one, other)
                case "unplug":
                    network.put_plug(one)
                case _:
                    network.mend(one)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class _Proxied:
    """By proxies: what others send to one node and get from it stops, and after a while their connections are reset."""

    def __init__(self, folder: Path) -> None:
        self._stack = contextlib.ExitStack()
        try:
            self.directory = self._stack.enter_context(DirectoryServer(folder))
            self._proxies = self._stack.enter_context(_Proxies())
            self.nodes: ClusterNodes = self._stack.enter_context(
                _BehindProxies(folder, self._proxies, self.directory.url)
            )
        except BaseException:
            self._stack.close()
            raise

    @contextmanager
    def fault(self, dice: random.Random) -> Iterator[str]:
        name = dice.choice(NAMES)
        proxy = self._proxies.proxies[name]
        proxy.frozen = True
        try:
            yield f"cut {name}"
        finally:
            proxy.frozen = False
            self._proxies.loop.call_soon_threadsafe(proxy.cut)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class _Proxies:
    """A proxy before each node, in a thread of their own."""

    def __init__(self) -> None:
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in NAMES}
        self.proxies: dict[str, Proxy] = {}
        self.loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.loop.run_until_complete(self._serve())
        self.loop.close()

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for name, address in self.addresses.items():
                self.proxies[name] = await stack.enter_async_context(proxy_to(address))
            self._ready.set()
            await self._over.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10.0)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join()


class _BehindProxies(ClusterNodes):
    def __init__(self, folder: Path, proxies: _Proxies, directory: str) -> None:
        super().__init__(folder, directory=directory)
        self._proxies = proxies

    def address_for(self, name: str) -> str:
        return self._proxies.addresses[name]

    def daemon_for(self, name: str, folder: Path, settings: Mapping[str, Setting]) -> DaemonProcess:
        advertised = {"cluster.advertise": self._proxies.proxies[name].address}
        return super().daemon_for(name, folder, {**settings, **advertised})
