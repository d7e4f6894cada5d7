"""Cuts a byte stream into frames and decodes the replies in them. Does no I/O."""

import msgspec

from mooncask.client import wire
from mooncask.errors import BadRequest


class ReplyReader:
    """Takes bytes as they arrive, gives whole replies. One thread at a time."""

    __slots__ = ("_buffer", "_decode")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._decode = msgspec.msgpack.Decoder(wire.Reply).decode

    def feed(self, data: bytes | memoryview) -> list[wire.Reply]:
        """The replies that `data` completes. Raises BadRequest for what is no frame; the stream is useless then."""
        if self._buffer:
            self._buffer += data
            data = bytes(self._buffer)
        replies, at = self._cut(data)
        self._buffer = bytearray(data[at:])
        return replies

    def _cut(self, data: bytes | memoryview) -> tuple[list[wire.Reply], int]:
        replies, at, length = [], 0, len(data)
        view = memoryview(data)
        while length - at >= wire.HEADER.size:
            (size,) = wire.HEADER.unpack_from(view, at)
            if size > wire.FRAME_BYTES_MAX:
                raise BadRequest(f"frame of {size} bytes; at most {wire.FRAME_BYTES_MAX} are allowed")
            end = at + wire.HEADER.size + size
            if end > length:
                break
            try:
                replies.append(self._decode(view[at + wire.HEADER.size : end]))
            except msgspec.MsgspecError as exc:
                raise BadRequest(f"malformed reply: {exc}") from exc
            at = end
        return replies, at
