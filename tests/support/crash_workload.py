"""Durable puts, replacements and deletes against a real daemon, and what a crash may leave of them.

For every key the workload keeps the set of contents that are right after a crash: one acknowledged state, and, while a
request is under way, also what it would lead to. None stands for "not there".
"""

import contextlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.wire import CommitState, NamespaceKind
from mooncask.errors import DaemonUnavailable

SIZES = (1, 4096, 5000, 100_000, 700_000)
KV_KEYS = 40
OBJECT_KEYS = 10

Contents = set[bytes | None]


class CrashWorkload:
    """One seeded history. `run` until the daemon dies, then `check` what the next one serves."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.allowed: dict[tuple[str, bytes], Contents] = {}
        self.acknowledged = 0
        self._stamp = 0

    def connect(self, socket_path: str) -> LocalClient:
        return LocalClient.connect(socket_path, name="crash-workload", deadline_seconds=20.0, populate=False)

    def namespaces(self, client: LocalClient) -> list[NamespaceHandle]:
        return [
            client.open_namespace("kv-crash", family={"model": "none"}),
            client.open_namespace("objects", kind=NamespaceKind.OBJECT),
        ]

    def run(self, socket_path: str, steps: int) -> bool:
        """Up to `steps` batches; True when the daemon went away meanwhile."""
        try:
            with contextlib.closing(self.connect(socket_path)) as client:
                kv, objects = self.namespaces(client)
                for _ in range(steps):
                    self._step(client, kv, objects)
        except DaemonUnavailable:
            return True
        return False

    def _step(self, client: LocalClient, kv: NamespaceHandle, objects: NamespaceHandle) -> None:
        choice = self.random.random()
        if choice < 0.6:
            absent = [key for key in self._keys("kv-crash") if self._contents("kv-crash", key) == {None}]
            self._put(client, kv, self._some(absent))
        elif choice < 0.8:
            self._put(client, objects, self._some(self._keys("objects")))
        else:
            namespace = self.random.choice([kv, objects])
            self._delete(client, namespace, self._some(self._keys(namespace.name)))

    def _put(self, client: LocalClient, namespace: NamespaceHandle, keys: list[bytes]) -> None:
        payloads = [self._payload() for _ in keys]
        with self._under_way(namespace, keys, payloads):
            states = client.put(namespace, keys, payloads, durable=True)
            assert all(state is CommitState.DURABLE for state in states), states

    def _delete(self, client: LocalClient, namespace: NamespaceHandle, keys: list[bytes]) -> None:
        with self._under_way(namespace, keys, [None] * len(keys)):
            client.evict(namespace, keys)

    @contextmanager
    def _under_way(
        self, namespace: NamespaceHandle, keys: list[bytes], after: "list[bytes] | list[None]"
    ) -> Iterator[None]:
        """Until it is acknowledged, each key may have its old content or its new one; afterwards only the new one."""
        for key, content in zip(keys, after, strict=True):
            self._contents(namespace.name, key).add(content)
        yield
        for key, content in zip(keys, after, strict=True):
            self.allowed[(namespace.name, key)] = {content}
        self.acknowledged += len(keys)

    # --- checking ---

    def check(self, socket_path: str) -> int:
        """Every key has an allowed content, on every read path, and what is listed is what can be read. How many are there."""
        there = 0
        with contextlib.closing(self.connect(socket_path)) as client:
            for namespace in self.namespaces(client):
                there += self._check_namespace(client, namespace)
        return there

    def _check_namespace(self, client: LocalClient, namespace: NamespaceHandle) -> int:
        keys = self._keys(namespace.name)
        found: dict[bytes, bytes] = {}
        for key in keys:
            with client.acquire(namespace, [key], verify=True) as blocks:
                block = blocks[0]
                if block is not None:
                    found[key] = bytes(block.memory)
            got = found.get(key)
            allowed = self._contents(namespace.name, key)
            assert got in allowed, (
                f"seed {self.seed}: {namespace.name}/{key!r} is {_short(got)}, not one of {[*map(_short, allowed)]}"
            )
        assert {stat.key for stat in client.list_blocks(namespace).blocks} == set(found), (
            f"seed {self.seed}: phantom keys"
        )
        assert all(client.verify(namespace, list(found))), f"seed {self.seed}: verify found wrong copies"
        return len(found)

    def settle(self, socket_path: str) -> None:
        """The daemon runs again: from now on each key has the content that it shows."""
        with contextlib.closing(self.connect(socket_path)) as client:
            for namespace in self.namespaces(client):
                for key in self._keys(namespace.name):
                    with client.acquire(namespace, [key]) as blocks:
                        content = None if blocks[0] is None else bytes(blocks[0].memory)
                    self.allowed[(namespace.name, key)] = {content}

    # --- drawing ---

    def _keys(self, namespace: str) -> list[bytes]:
        count = KV_KEYS if namespace == "kv-crash" else OBJECT_KEYS
        return [b"%s-%03d" % (namespace.encode(), number) for number in range(count)]

    def _contents(self, namespace: str, key: bytes) -> Contents:
        return self.allowed.setdefault((namespace, key), {None})

    def _some(self, keys: list[bytes]) -> list[bytes]:
        return self.random.sample(keys, min(len(keys), self.random.randint(1, 6)))

    def _payload(self) -> bytes:
        self._stamp += 1
        size = self.random.choice(SIZES)
        return (b"%08d" % self._stamp * (size // 8 + 1))[:size]


def _short(content: bytes | None) -> str:
    return "absent" if content is None else f"{content[:8]!r} x {len(content)}"
