"""A proxy between two nodes that does to their data connections what networks do: flips a byte, slows down, stops, cuts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from mooncask.daemon.transport.authentication import DATA, PREAMBLE_BYTES

PART_BYTES = 64 << 10


@dataclass
class Proxy:
    """Passes on what it gets; the faults are for bytes that flow on data connections from the server to the client."""

    address: str
    flip_at: int = -1
    """Flip one bit of this byte of each data connection's stream, counted from 0."""
    bytes_per_second: float = 0.0
    """0 = as fast as it goes."""
    open: asyncio.Event = field(default_factory=asyncio.Event)
    """While it is clear nothing passes."""
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    data_writers: set[asyncio.StreamWriter] = field(default_factory=set)
    passed: int = 0
    frozen: bool = False

    def cut(self, data_only: bool = False) -> None:
        """Ends every connection, as a network does that goes away: with a reset."""
        for writer in self.data_writers if data_only else self.writers:
            writer.transport.abort()

    def freeze(self) -> None:
        """From now on nothing passes in any direction, and nobody is told."""
        self.frozen = True


@asynccontextmanager
async def proxy_to(address: str) -> AsyncIterator[Proxy]:
    host, _, port = address.rpartition(":")
    proxy = Proxy("")
    proxy.open.set()
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        tasks.add(task)
        try:
            await _pass(proxy, host, int(port), reader, writer)
        except asyncio.CancelledError:
            pass  # the top of the task, which ends here: the stream's own callback can't bear a cancelled one
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pass(proxy: Proxy, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    far_reader, far_writer = await asyncio.open_connection(host, port)
    proxy.writers |= {writer, far_writer}
    try:
        preamble = await reader.readexactly(PREAMBLE_BYTES)
        if preamble[10] == DATA:
            proxy.data_writers |= {writer, far_writer}
        far_writer.write(preamble)
        up = asyncio.create_task(_pump(proxy, reader, far_writer, faulty=False))
        try:
            await _pump(proxy, far_reader, writer, faulty=preamble[10] == DATA)
        finally:
            up.cancel()
            await asyncio.gather(up, return_exceptions=True)
    except (OSError, EOFError):
        pass
    finally:
        proxy.writers -= {writer, far_writer}
        proxy.data_writers -= {writer, far_writer}
        for one in (writer, far_writer):
            one.transport.abort()
            with contextlib.suppress(OSError):
                await one.wait_closed()


async def _pump(proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, faulty: bool) -> None:
    at = 0
    while part := await reader.read(PART_BYTES):
        if faulty:
            part = await _harm(proxy, part, at)
            proxy.passed += len(part)
        at += len(part)
        if proxy.frozen:
            await asyncio.get_running_loop().create_future()
        if writer.is_closing():
            return
        writer.write(part)
        await writer.drain()
    writer.close()


async def _harm(proxy: Proxy, part: bytes, at: int) -> bytes:
    await proxy.open.wait()
    if proxy.bytes_per_second:
        await asyncio.sleep(len(part) / proxy.bytes_per_second)
    if at <= proxy.flip_at < at + len(part):
        altered = bytearray(part)
        altered[proxy.flip_at - at] ^= 1
        return bytes(altered)
    return part
