"""The local socket's protocol spoken by hand: frames of plain lists, as docs/PROTOCOL.md has them. Uses nothing of the project."""

import mmap
import os
import secrets
import socket
import struct
from types import TracebackType
from typing import Any, Self

import msgspec

ANSWER_SECONDS = 20.0

HELLO, OPEN, MATCH, ACQUIRE, ADOPT, EXPECT, RELEASE, RESERVE, ADVANCE = range(1, 10)
COMMIT, ABORT, PIN, UNPIN, SET_TTL, EVICT, STAT, LIST_BLOCKS, VERIFY = range(10, 19)
WELCOME, OPENED, MATCHED, ACQUIRED, ADOPTED, PROGRESS, RESERVED, COMMITTED, DONE, BLOCKS, STATUS = range(101, 112)
FAILED = 199

Item = list[Any]


def frame(body: Any) -> bytes:
    """A whole frame of anything."""
    data = msgspec.msgpack.encode(body)
    return struct.pack("<I", len(data)) + data


class RawConnection:
    """One connection. `welcome` is the Welcome as a list, `memory` the mapped descriptors by name."""

    def __init__(self, path: str, process: bytes = b"") -> None:
        self.process = process or secrets.token_bytes(16)
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(ANSWER_SECONDS)
        self.sock.connect(path)
        self.welcome: Item = []
        self.memory: dict[str, mmap.mmap] = {}
        self._buffer = b""
        self._last_id = 0

    @classmethod
    def greeted(cls, path: str, process: bytes = b"", resume: list[int] | None = None, want_write: bool = True) -> Self:
        """A connection that has said Hello and was welcomed."""
        connection = cls(path, process)
        connection.send([HELLO, 1, 1, "conformance", connection.process, want_write, resume or []])
        connection.be_welcomed()
        return connection

    def be_welcomed(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self.sock, 65536, 8, socket.MSG_CMSG_CLOEXEC)
        self._buffer = data
        self.welcome = self.receive()
        try:
            assert self.welcome[0] == WELCOME, self.welcome
            for name, descriptor in zip(self.welcome[7], descriptors, strict=True):
                length = self.welcome[8] if name == "staging" else self.welcome[5]
                access = mmap.ACCESS_READ if name == "arena" else mmap.ACCESS_WRITE
                self.memory[name] = mmap.mmap(descriptor, length, access=access)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    @property
    def write_memory(self) -> mmap.mmap:
        return self.memory["arena-writable"] if "arena-writable" in self.memory else self.memory["staging"]

    # --- frames ---

    def send(self, body: Any) -> None:
        self.sock.sendall(frame(body))

    def send_bytes(self, data: bytes) -> None:
        self.sock.sendall(data)

    def receive(self) -> Item:
        """The next frame. Raises EOFError when the server closed the connection."""
        header = self._read(4)
        found: Item = msgspec.msgpack.decode(self._read(struct.unpack("<I", header)[0]))
        return found

    def ask(self, tag: int, *fields: Any) -> Item:
        """Sends a request and gives its (first) answer; there must be no other request under way."""
        self._last_id += 1
        self.send([tag, self._last_id, *fields])
        answer = self.receive()
        assert answer[1] == self._last_id, f"answer {answer} to request {self._last_id}"
        return answer

    def _read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            try:
                data = self.sock.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError("the server closed the connection")
            self._buffer += data
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        return data

    def is_closed(self) -> bool:
        """Whether the server closed the connection; waits for it."""
        try:
            self.receive()
        except EOFError:
            return True
        return False

    # --- what most tests begin with ---

    def open(self, name: str = "", **family: str) -> int:
        """A handle of a KV namespace in memory mode."""
        opened = self.ask(OPEN, name, "kv", family or {"model": secrets.token_hex(8)}, "", "memory")
        assert opened[0] == OPENED, opened
        handle: int = opened[2]
        return handle

    def reserve(self, handle: int, keys: list[bytes], sizes: list[int], *more: Any) -> Item:
        return self.ask(RESERVE, handle, keys, sizes, 5000, *more)

    def put(self, handle: int, keys: list[bytes], payloads: list[bytes]) -> Item:
        """Reserve, write, commit; the Committed."""
        reserved = self.reserve(handle, keys, [len(payload) for payload in payloads])
        assert reserved[0] == RESERVED, reserved
        for offset, payload in zip(reserved[4], payloads, strict=True):
            self.write_memory[offset : offset + len(payload)] = payload
        return self.ask(COMMIT, reserved[2], reserved[3], 5000)

    def close(self) -> None:
        self.sock.close()
        for memory in self.memory.values():
            memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
