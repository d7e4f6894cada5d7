"""Blocks that are written layer by layer at one node, and readers at another that wait for them.

    with LayerWriter(one, [1, 2], layers=8) as writer, Waiting(two, writer.keys) as reader:
        writer.write(3)         # layers [0, 3) of both blocks, then advance
        writer.commit()
    assert reader.payloads == writer.payloads

As a program (`python layer_writer.py SOCKET LAYERS DONE NUMBER...`) it writes DONE layers, says so, and lives until it is killed.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import numpy as np
from cluster_nodes import FAMILY, Node

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.wire import CommitState
from mooncask.errors import MooncaskError

SIZE = 512 << 10
CONNECT_SECONDS = 30.0
"""Readers that begin together connect one after the other, which takes its time on a busy machine."""


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def payload_of(number: int, size: int = SIZE) -> bytes:
    """No two layers of it are alike."""
    return np.random.default_rng(number).bytes(size)


class LayerWriter:
    """Reserves the blocks when it is entered; `version` makes other bytes for the same keys."""

    def __init__(
        self, client: LocalClient, numbers: Sequence[int], layers: int = 8, size: int = SIZE, version: int = 0
    ) -> None:
        self._client = client
        self.layers, self._size = layers, size
        self.keys = [key_of(number) for number in numbers]
        self.payloads = [payload_of(number + 1000 * version, size) for number in numbers]
        self._done = 0

    def __enter__(self) -> Self:
        namespace = self._client.open_namespace("", FAMILY)
        sizes = [self._size] * len(self.keys)
        self.reservations = self._client.reserve(namespace, self.keys, sizes, layers=self.layers)
        return self

    def write(self, done: int) -> None:
        """Layers up to `done`, and says so."""
        self.write_silently(done)
        self.reservations.advance(done)

    def write_silently(self, done: int) -> None:
        start, end = (self._size // self.layers * layer for layer in (self._done, done))
        for slot, payload in zip(self.reservations, self.payloads, strict=True):
            assert slot is not None
            slot.memory[start:end] = payload[start:end]
        self._done = done

    def spoil(self, index: int, byte: int) -> None:
        """Changes a byte that was said to be written; the block that is committed has it."""
        slot, changed = self.reservations[index], bytearray(self.payloads[index])
        assert slot is not None
        changed[byte] ^= 0xFF
        slot.memory[byte] = changed[byte]
        self.payloads[index] = bytes(changed)

    def commit(self) -> None:
        self.write_silently(self.layers)
        assert self.reservations.commit() == [CommitState.PUBLISHED] * len(self.keys)

    def abort(self) -> None:
        self.reservations.abort()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.reservations.open:
            self.reservations.abort()


class Waiting:
    """One `acquire(wait=True)` in a thread, with a client of its own. Results when it is left."""

    def __init__(self, node: Node, keys: Sequence[bytes], seconds: float = 20.0) -> None:
        self._node, self._keys, self._seconds = node, keys, seconds
        self.payloads: list[bytes | None] = []
        self.layers: list[int] = []
        """Of the first block, as they were told."""
        self.took_seconds = -1.0
        self.ended_at = 0.0
        self._error: MooncaskError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._acquire()
        except MooncaskError as error:
            self._error = error

    def _acquire(self) -> None:
        with LocalClient.connect(self._node.daemon.socket_path, deadline_seconds=CONNECT_SECONDS) as client:
            namespace: NamespaceHandle = client.open_namespace("", FAMILY)
            began = time.monotonic()
            with client.acquire(namespace, self._keys, self._seconds, wait=True, progress=self._progress) as blocks:
                self.ended_at = time.monotonic()
                self.payloads = [None if block is None else bytes(block.memory) for block in blocks]
            self.took_seconds = self.ended_at - began

    def _progress(self, index: int, layer: int, layers: int) -> None:
        if index == 0:
            self.layers.append(layer)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(60.0)
        assert not self._thread.is_alive(), "a waiting acquire hangs"
        if self._error is not None:
            raise self._error

    def __exit__(self, *_: object) -> None:
        self.join()


@contextmanager
def writing_process(node: Node, layers: int, done: int, *numbers: int) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has written so many layers and neither goes on nor ends."""
    command = [sys.executable, __file__, node.daemon.socket_path, str(layers), str(done), *map(str, numbers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"written\n"
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    socket, all_layers, written, *chosen = sys.argv[1:]
    with (
        LocalClient.connect(socket) as connection,
        LayerWriter(connection, [int(one) for one in chosen], int(all_layers)) as itself,
    ):
        itself.write(int(written))
        print("written", flush=True)
        sys.stdin.read()
