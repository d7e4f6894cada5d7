"""Raw HTTP load on kept connections: one selector, no parsing in the loop, so that the server is what is measured.

Answers to one request all have the same length (only their dates and ids differ), which one request beforehand tells; from then on
bytes are counted. That they are the right bytes is compared once, by `fetch`; that all of them are answers to requests that
succeeded, by the lengths.
"""

import selectors
import socket
from collections.abc import Sequence
from dataclasses import dataclass

Buffers = Sequence[bytes | memoryview]

BUFFER_BYTES = 1 << 20
OK = b"HTTP/1.1 200"
END_OF_HEAD = b"\r\n\r\n"
TIMEOUT_SECONDS = 60.0


class WrongAnswer(Exception):
    """A server answered something else than the body that it was asked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    head: bytes
    body: bytes

    @property
    def size(self) -> int:
        return len(self.head) + len(self.body)


def request(method: str, path: str, host: str, size: int = 0, headers: Sequence[tuple[str, str]] = ()) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers)]
    if method == "PUT":
        lines.append(f"Content-Length: {size}")
    return "\r\n".join(lines).encode() + END_OF_HEAD


def fetch(port: int, message: Buffers) -> Answer:
    """One request on a connection of its own. Raises WrongAnswer unless it is answered with 200."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS) as sock:
        for part in message:
            sock.sendall(part)
        got = bytearray()
        while END_OF_HEAD not in got:
            got += _received(sock)
        head = bytes(got[: got.index(END_OF_HEAD) + 4])
        size = _content_length(head)
        while len(got) < len(head) + size:
            got += _received(sock)
    if not head.startswith(OK):
        raise WrongAnswer(f"{head.partition(END_OF_HEAD[:2])[0]!r}: {bytes(got[len(head) :])[:300]!r}")
    return Answer(head, bytes(got[len(head) :]))


class Load:
    """`connections` kept connections to one server; close it, or use `with contextlib.closing`. Not thread-safe."""

    def __init__(self, port: int, connections: int) -> None:
        self._lanes = [_Lane(port) for _ in range(connections)]
        self._selector = selectors.DefaultSelector()
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        for lane in self._lanes:
            self._selector.register(lane.sock, selectors.EVENT_READ, lane)

    def run(self, messages: Sequence[Buffers], answer_bytes: int, ahead: int = 1) -> None:
        """Sends every message once, each connection up to `ahead` before their answers, and reads all answers.

        Raises WrongAnswer when an answer begins with anything but 200, as far as answers begin where a read does.
        """
        waiting = iter(messages)
        for lane in self._lanes:
            for _ in range(ahead):
                if (message := next(waiting, None)) is not None:
                    lane.put(message)
            self._watch(lane)
        busy = sum(lane.unanswered > 0 for lane in self._lanes)
        while busy:
            for key, events in self._selector.select(TIMEOUT_SECONDS):
                lane = key.data
                if events & selectors.EVENT_WRITE:
                    lane.send()
                if events & selectors.EVENT_READ:
                    for _ in range(lane.receive(self._buffer, answer_bytes)):
                        if (message := next(waiting, None)) is not None:
                            lane.put(message)
                    busy -= not lane.unanswered
                self._watch(lane)

    def close(self) -> None:
        self._selector.close()
        for lane in self._lanes:
            lane.sock.close()

    def _watch(self, lane: "_Lane") -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if lane.unsent else 0)
        if events != lane.watched:
            lane.watched = events
            self._selector.modify(lane.sock, events, lane)


class _Lane:
    """One connection: what is still to be sent, and how much of how many answers has come."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.unsent: list[memoryview] = []
        self.unanswered = 0
        self.watched = selectors.EVENT_READ
        self._got = 0

    def put(self, message: Buffers) -> None:
        self.unsent += [memoryview(part) for part in message]
        self.unanswered += 1
        self.send()

    def send(self) -> None:
        while self.unsent:
            try:
                count = self.sock.sendmsg(self.unsent[:16])
            except BlockingIOError:
                return
            while count and count >= self.unsent[0].nbytes:
                count -= self.unsent.pop(0).nbytes
            if count:
                self.unsent[0] = self.unsent[0][count:]

    def receive(self, buffer: memoryview, answer_bytes: int) -> int:
        """How many answers are complete by what has come now."""
        at_start = self._got == 0
        try:
            count = self.sock.recv_into(buffer)
        except BlockingIOError:
            return 0
        except ConnectionError as error:
            raise WrongAnswer(f"after {self._got} bytes of an answer: {error}") from error
        if count == 0 or (at_start and bytes(buffer[: len(OK)]) != OK):
            raise WrongAnswer(f"after {self._got} bytes of an answer: {bytes(buffer[: min(count, 300)])!r}")
        complete, self._got = divmod(self._got + count, answer_bytes)
        self.unanswered -= complete
        if self.unanswered < 0 or (self._got and not self.unanswered):
            raise WrongAnswer(f"more bytes than {answer_bytes} an answer")
        return complete


def _received(sock: socket.socket) -> bytes:
    data = sock.recv(BUFFER_BYTES)
    if not data:
        raise WrongAnswer("the server closed the connection")
    return data


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0
