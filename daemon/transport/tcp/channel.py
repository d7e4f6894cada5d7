"""Frames of one control connection, for both ends. What they mean: `link.py` and `served_link.py`."""

import asyncio
import contextlib
import time

import msgspec

from mooncask.daemon.transport.messages import FRAME_BYTES_MAX, HEADER, frame, frame_length
from mooncask.errors import PeerUnavailable

UNSENT_BYTES_MAX = 4 * FRAME_BYTES_MAX
"""What may wait for a peer that does not read; more ends the link."""


class Channel:
    """One task receives; any may send, for sending does not wait. What is sent in one turn of the loop goes out together: each
    write wakes the other side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        self._reader = reader
        self._writer = writer
        self._peer = peer
        self.heard_seconds = time.monotonic()
        """When the last frame came."""
        self._unsent = bytearray()

    async def receive(self) -> bytes:
        """The next frame's body. Raises PeerUnavailable at the stream's end and BadRequest for what is no frame."""
        try:
            body = await self._reader.readexactly(frame_length(await self._reader.readexactly(HEADER.size)))
        except asyncio.IncompleteReadError as error:
            raise PeerUnavailable(self._peer, "closed the connection") from error
        except OSError as error:
            raise PeerUnavailable(self._peer, error.strerror or str(error) or type(error).__name__) from error
        self.heard_seconds = time.monotonic()
        return body

    def send(self, message: msgspec.Struct) -> None:
        """Raises BadRequest for a message that is too long, PeerUnavailable when the peer does not read."""
        data = frame(message)
        if self._writer.is_closing():  # uvloop's transport raises RuntimeError then
            raise PeerUnavailable(self._peer, "closed the connection")
        if self._writer.transport.get_write_buffer_size() + len(self._unsent) > UNSENT_BYTES_MAX:
            raise PeerUnavailable(self._peer, "does not read what it is sent")
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent += data

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, bytearray()
        if unsent and not self._writer.is_closing():
            self._writer.write(unsent)

    def finish(self) -> None:
        """Ends the connection when what was sent has gone; at once if nothing waits."""
        self._flush()
        self._writer.close()

    def abort(self) -> None:
        """Ends the connection at once."""
        self._writer.transport.abort()

    async def closed(self) -> None:
        """Returns when the connection's transport has let go of its socket."""
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
