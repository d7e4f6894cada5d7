"""`mooncask put` and `get`: bytes in and out of the store by name.

What is one block goes through shared memory; an object longer than a block is streamed over the daemon's Unix socket for HTTP.
"""

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from mooncask.client.wire import CommitState, NamespaceKind
from mooncask.errors import NoSuchBlock, ObjectInParts
from mooncask.tools.connection import (
    DEADLINE_SECONDS,
    Json,
    Key,
    Namespace,
    Socket,
    connected,
    find_namespace,
    is_kv,
    open_existing,
    socket_of,
)
from mooncask.tools.keys import format_size, parse_key
from mooncask.tools.object_client import PIECE_BYTES, ObjectClient
from mooncask.tools.output import print_json, printable, stdout_bytes

if TYPE_CHECKING:
    from mooncask.client.local import LocalClient
    from mooncask.client.namespace import NamespaceHandle

WHOLE_BYTES_MAX = 16 << 20
"""Of an object that is put as one block, as S3's PUT does."""


def put(
    namespace: Namespace,
    key: Key,
    file: Annotated[Path, typer.Argument(help='What to store; "-" reads from stdin.', metavar="FILE")],
    durable: Annotated[bool, typer.Option(help="Return only when the bytes survive a crash.")] = False,
    mode: Annotated[str, typer.Option(help="For a new namespace: write_through, write_back or memory.")] = "",
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Store a file as one block, or as an object of any length. A namespace that does not exist is made, for objects."""
    with _opened(file) as source, connected(socket) as client:
        size = os.fstat(source.fileno()).st_size
        handle = _open_or_make(client, namespace, mode)
        if is_kv(handle) or size <= WHOLE_BYTES_MAX:
            (state,) = client.put(handle, [parse_key(key, is_kv(handle))], [source.read()], durable=durable)
        else:
            with ObjectClient.beside(socket_of(socket)) as door:
                door.put_pieces(namespace, key, size, _pieces(source), {})
            state = CommitState.DURABLE if handle.mode == "write_through" else CommitState.PUBLISHED
    if as_json:
        print_json({"namespace": namespace, "key": key, "bytes": size, "state": state.name.lower()})
    else:
        typer.echo(f"{printable(namespace)}/{printable(key)}: {format_size(size)} {_said(state)}")


def get(
    namespace: Namespace,
    key: Key,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; stdout by default.")] = None,
    verify: Annotated[bool, typer.Option(help="Check the bytes' checksum also when they are in DRAM.")] = False,
    socket: Socket = None,
) -> None:
    """Write one block's bytes, or an object's, to stdout or a file."""
    with connected(socket) as client:
        handle = open_existing(client, namespace)
        wanted = [parse_key(key, is_kv(handle))]
        try:
            with client.acquire(handle, wanted, deadline_seconds=DEADLINE_SECONDS, verify=verify) as blocks:
                block = blocks[0]
                if block is None:
                    raise NoSuchBlock(namespace, key)
                _write(output, [block.memory])
        except ObjectInParts:
            with ObjectClient.beside(socket_of(socket)) as door:
                size, headers = door.headers_of(namespace, key)
                _write(output, door.pieces(namespace, key, size, headers.get("ETag", "")))


@contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    """The file, or what comes from stdin: its length must be known before the first byte is sent."""
    if str(file) != "-":
        with file.open("rb") as found:
            yield found
        return
    with tempfile.TemporaryFile() as spool:
        while piece := sys.stdin.buffer.read(PIECE_BYTES):
            spool.write(piece)
        spool.seek(0)
        yield spool


def _pieces(source: IO[bytes]) -> Iterator[bytes]:
    while piece := source.read(PIECE_BYTES):
        yield piece


def _write(output: Path | None, pieces: "Iterable[bytes | memoryview]") -> None:
    """A file appears when it is whole."""
    if output is None:
        screen = stdout_bytes()
        screen.writelines(pieces)
        screen.flush()
        return
    if output.exists() and not output.is_file():  # /dev/null, a pipe
        with output.open("wb") as target:
            target.writelines(pieces)
        return
    part = output.with_name(f"{output.name}.part")
    try:
        with part.open("wb") as target:
            target.writelines(pieces)
        part.replace(output)
    except BaseException:
        with suppress(FileNotFoundError):
            part.unlink()
        raise


def _open_or_make(client: "LocalClient", name: str, mode: str) -> "NamespaceHandle":
    if find_namespace(client, name) is not None:
        return open_existing(client, name)
    return client.open_namespace(name, kind=NamespaceKind.OBJECT, mode=mode)


def _said(state: CommitState) -> str:
    return (
        "not stored: the namespace has that block" if state is CommitState.HAVE_IT else f"stored ({state.name.lower()})"
    )
