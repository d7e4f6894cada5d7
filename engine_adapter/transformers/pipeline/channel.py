"""Frames over a Unix socket pair: messages between head and stage, hidden states between stages. No pickle.

A message is a u32 (little endian) length and msgpack. A chunk of hidden states is a header (job, first token, tokens, bytes)
and the tensor's bytes as they lie in memory; both ends know its shape from the header, and its dtype and width from the model.
"""

import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec
import torch

from mooncask.engine_adapter.transformers.pipeline.messages import ToHead, ToStage
from mooncask.errors import DeadlineExceeded, WorkerUnavailable

In = TypeVar("In")
LENGTH = struct.Struct("<I")
HIDDEN = struct.Struct("<QIIQ")
MESSAGE_BYTES_MAX = 16 << 20
SEND_SECONDS_MAX = 30.0
QUEUED_CHUNKS_MAX = 2
"""Of hidden states that wait for a slower stage; whoever makes more waits too."""


class Channel(Generic[In]):
    """One end of a pair. One thread at a time. Raises WorkerUnavailable when the other end is gone."""

    def __init__(self, sock: socket.socket, kind: Any, who: str) -> None:
        self.sock, self.who = sock, who
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[In] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def send(self, message: msgspec.Struct) -> None:
        data = self._encoder.encode(message)
        try:
            self.sock.settimeout(SEND_SECONDS_MAX)
            self.sock.sendall(LENGTH.pack(len(data)) + data)
        except OSError as exc:
            raise WorkerUnavailable(self.who, f"it takes no messages: {exc}") from exc

    def receive(self) -> In:
        """The next message, however long it takes."""
        self.sock.settimeout(None)
        while (message := self.take()) is None:
            self.read_some()
        return message

    def read_some(self) -> None:
        """Takes in what has come, waiting for the first byte."""
        try:
            data = self.sock.recv(1 << 18)
        except OSError as exc:
            raise WorkerUnavailable(self.who, f"its connection broke: {exc}") from exc
        if not data:
            raise WorkerUnavailable(self.who, "its process has ended")
        self._buffer += data

    def take(self) -> In | None:
        """A message that is here as a whole."""
        if len(self._buffer) < LENGTH.size:
            return None
        (size,) = LENGTH.unpack_from(self._buffer)
        if size > MESSAGE_BYTES_MAX:
            raise WorkerUnavailable(self.who, f"it sends a message of {size} bytes")
        end = LENGTH.size + size
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[LENGTH.size : end])
        del self._buffer[:end]
        try:
            return self._decoder.decode(payload)
        except msgspec.DecodeError as exc:
            raise WorkerUnavailable(self.who, f"it sends what is no message: {exc}") from exc

    def close(self) -> None:
        self.sock.close()


def stage_channel(sock: socket.socket) -> "Channel[ToStage]":
    """A stage's end."""
    return Channel(sock, ToStage, "the pipeline's head")


def head_channel(sock: socket.socket, who: str) -> "Channel[ToHead]":
    """The head's end of one stage."""
    return Channel(sock, ToHead, who)


def receive_any(channels: Mapping[int, "Channel[ToHead]"], seconds: float) -> tuple[int, ToHead]:
    """The next message of any of these, with its number. Raises WorkerUnavailable, DeadlineExceeded."""
    deadline = time.monotonic() + seconds
    by_descriptor = {channel.sock.fileno(): number for number, channel in channels.items()}
    while True:
        for number, channel in channels.items():
            if (message := channel.take()) is not None:
                return number, message
        left = deadline - time.monotonic()
        ready = select.select(list(by_descriptor), [], [], max(0.0, left))[0]
        if not ready:
            raise DeadlineExceeded("a stage of the pipeline", seconds)
        for descriptor in ready:
            channels[by_descriptor[descriptor]].read_some()


class HiddenOut:
    """Sends chunks to the next stage from a thread, so that this stage can go on with its next chunk meanwhile."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._waiting: queue.Queue[tuple[bytes, torch.Tensor] | None] = queue.Queue(QUEUED_CHUNKS_MAX)
        self._broken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hidden-out", daemon=True)
        self._thread.start()

    def put(self, job: int, start: int, hidden: torch.Tensor) -> None:
        """[1, tokens, width]; not to be changed afterwards. Waits while the next stage is too far behind."""
        flat = hidden.contiguous().reshape(-1).view(torch.uint8)
        self._waiting.put((HIDDEN.pack(job, start, hidden.shape[1], flat.numel()), flat))
        if self._broken.is_set():
            raise WorkerUnavailable("the next stage", "its process has ended")

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            header, flat = item
            try:
                if not self._broken.is_set():
                    self._sock.sendall(header)
                    self._sock.sendall(flat.numpy().data)
            except OSError:
                self._broken.set()


class HiddenIn:
    """Receives chunks from the stage before."""

    def __init__(self, sock: socket.socket, width: int, dtype: torch.dtype) -> None:
        self._sock, self._width, self._dtype = sock, width, dtype

    def get(self, job: int, start: int, tokens: int) -> torch.Tensor:
        """[1, tokens, width] of that very chunk. Raises WorkerUnavailable when another one comes, or none."""
        header = bytearray(HIDDEN.size)
        self._fill(memoryview(header))
        size = tokens * self._width * self._dtype.itemsize
        if (found := HIDDEN.unpack(header)) != (job, start, tokens, size):
            raise WorkerUnavailable("the stage before", f"it sent {found} where {(job, start, tokens, size)} belongs")
        flat = torch.empty(size, dtype=torch.uint8)
        self._fill(flat.numpy().data)
        return flat.view(self._dtype).reshape(1, tokens, self._width)

    def _fill(self, view: memoryview) -> None:
        while view:
            count = self._sock.recv_into(view)
            if not count:
                raise WorkerUnavailable("the stage before", "its process has ended")
            view = view[count:]
