"""Places of a network of its own, each a network namespace, joined by veth pairs to a bridge: cut, healed, slowed at will.

    with Network("n1", "n2") as network:
        subprocess.Popen([*network["n1"].prefix, ...])
        network.cut("n1", "n2")

The namespaces have no names and no mounts: each belongs to a child process that ends with the test, however that ends, and takes
links, routes and rules with it. Nothing is made in the host's namespace. What a cut takes is lost without a word, as in a network
whose switch lost its way; both ends still have their link. Unix sockets are reached across places as ever.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

SECONDS = 10.0
NOBODY = "02:00:00:00:00:fe"
"""A link address that no place has."""
CLONE_NEWNET = 0x40000000
_TOOLS = ("ip", "tc", "unshare", "nsenter")


def why_no_places() -> str:
    """Empty where network namespaces can be made."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs iproute2 and util-linux: there is no {', '.join(missing)}"
    if os.geteuid() != 0:
        return "needs root: only root makes network namespaces"
    tried = subprocess.run(
        ["unshare", "--net", "sh", "-c", "ip link add end0 type veth peer name end1 && ip link add hub type bridge"],
        check=False,
        capture_output=True,
        text=True,
    )
    said = tried.stderr.strip()[:200]
    return f"the kernel makes no network namespace with veth and bridge: {said}" if tried.returncode else ""


class Place:
    """One namespace, kept by a process that waits for its stdin to close."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._keeper = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        try:
            self._wait_until_apart()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._keeper.pid

    @property
    def prefix(self) -> tuple[str, ...]:
        """Before a command that shall run here. The command keeps the pid of the process that is started."""
        return ("nsenter", f"--net=/proc/{self.pid}/ns/net", "--")

    def threads(self, count: int) -> ThreadPoolExecutor:
        """Whose sockets are in this place."""
        return ThreadPoolExecutor(count, initializer=self._enter)

    def _enter(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with Path(f"/proc/{self.pid}/ns/net").open("rb") as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "no thread can enter the place")

    def ip(self, *lines: str) -> None:
        """Commands of iproute2's ip, in one go."""
        done = subprocess.run(
            [*self.prefix, "ip", "-batch", "-"],
            check=False,
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{lines}: {done.stderr}"

    def tc(self, *words: str) -> str:
        """What it complained of; empty: it is done."""
        done = subprocess.run([*self.prefix, "tc", *words], check=False, capture_output=True, text=True)
        return done.stderr if done.returncode else ""

    def close(self) -> None:
        if self._keeper.stdin is not None:
            with contextlib.suppress(OSError):
                self._keeper.stdin.close()
        self._keeper.kill()
        self._keeper.wait()

    def _wait_until_apart(self) -> None:
        mine, deadline = Path("/proc/self/ns/net").readlink(), time.monotonic() + SECONDS
        while Path(f"/proc/{self.pid}/ns/net").readlink() == mine:
            assert self._keeper.poll() is None and time.monotonic() < deadline, "no namespace was made"
            time.sleep(0.002)


class Network:
    """Places by name at one bridge, which is in a place of its own. All of it belongs to one thread."""

    def __init__(self, *names: str) -> None:
        why = why_no_places()
        if why:
            pytest.skip(why)
        self._places: dict[str, Place] = {}
        self._ports = {name: f"port{number}" for number, name in enumerate(names)}
        self._bridge = Place("")
        try:
            self._bridge.ip("link add bridge type bridge", "link set bridge up")
            for number, name in enumerate(names):
                self._places[name] = Place(f"10.77.0.{number + 1}")
                self._join(name)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> Place:
        return self._places[name]

    def _join(self, name: str) -> None:
        place, port = self._places[name], self._ports[name]
        self._bridge.ip(
            f"link add {port} type veth peer name eth0 netns {place.pid}", f"link set {port} master bridge up"
        )
        place.ip("link set lo up", f"address add {place.address}/24 dev eth0", "link set eth0 up")

    def cut(self, one: str, other: str) -> None:
        """What either sends to the other is lost from now on."""
        self._lose(one, other)
        self._lose(other, one)

    def heal(self, one: str, other: str) -> None:
        for here, there in ((one, other), (other, one)):
            self[here].ip(f"neigh del {self[there].address} dev eth0")

    def pull_plug(self, name: str) -> None:
        """The place reaches nobody and nobody reaches it."""
        self._bridge.ip(f"link set {self._ports[name]} down")

    def put_plug(self, name: str) -> None:
        self._bridge.ip(f"link set {self._ports[name]} up")

    def slow(self, name: str, bytes_per_second: int) -> None:
        """What the place sends gets no faster through than that. Skips where the kernel can't."""
        rate = f"{bytes_per_second * 8}bit"
        self._shape(name, "tbf", "rate", rate, "burst", "64kb", "latency", "200ms")

    def worsen(self, name: str, milliseconds: int, loss_percent: float) -> None:
        """What the place sends is late, and some of it is lost. Skips where the kernel has no netem."""
        self._shape(name, "netem", "delay", f"{milliseconds}ms", "loss", f"{loss_percent}%")

    def mend(self, name: str) -> None:
        """Neither slow nor worse any more."""
        self[name].tc("qdisc", "del", "dev", "eth0", "root")

    def close(self) -> None:
        for place in (*self._places.values(), self._bridge):
            place.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lose(self, here: str, there: str) -> None:
        self[here].ip(f"neigh replace {self[there].address} lladdr {NOBODY} dev eth0 nud permanent")

    def _shape(self, name: str, kind: str, *how: str) -> None:
        complaint = self[name].tc("qdisc", "replace", "dev", "eth0", "root", kind, *how)
        if complaint:
            pytest.skip(f"this kernel has no {kind}: {complaint.strip()[:200]}")
