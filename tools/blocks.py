"""`mooncask put` and `get`: bytes in and out of the store by name."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.wire import CommitState, NamespaceKind
from mooncask.errors import NoSuchBlock
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
)
from mooncask.tools.keys import format_size, parse_key
from mooncask.tools.output import print_json, printable


def put(
    namespace: Namespace,
    key: Key,
    file: Annotated[Path, typer.Argument(help='What to store; "-" reads from stdin.', metavar="FILE")],
    durable: Annotated[bool, typer.Option(help="Return only when the bytes survive a crash.")] = False,
    mode: Annotated[str, typer.Option(help="For a new namespace: write_through, write_back or memory.")] = "",
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Store a file as one block. A namespace that does not exist is made, for objects."""
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    with connected(socket) as client:
        handle = _open_or_make(client, namespace, mode)
        (state,) = client.put(handle, [parse_key(key, is_kv(handle))], [data], durable=durable)
    if as_json:
        print_json({"namespace": namespace, "key": key, "bytes": len(data), "state": state.name.lower()})
    else:
        typer.echo(f"{printable(namespace)}/{printable(key)}: {format_size(len(data))} {_said(state)}")


def get(
    namespace: Namespace,
    key: Key,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; stdout by default.")] = None,
    verify: Annotated[bool, typer.Option(help="Check the bytes' checksum also when they are in DRAM.")] = False,
    socket: Socket = None,
) -> None:
    """Write one block's bytes to stdout or a file."""
    with connected(socket) as client:
        handle = open_existing(client, namespace)
        wanted = [parse_key(key, is_kv(handle))]
        with client.acquire(handle, wanted, deadline_seconds=DEADLINE_SECONDS, verify=verify) as blocks:
            block = blocks[0]
            if block is None:
                raise NoSuchBlock(namespace, key)
            if output is None:
                sys.stdout.buffer.write(block.memory)
                sys.stdout.buffer.flush()
            else:
                output.write_bytes(block.memory)


def _open_or_make(client: LocalClient, name: str, mode: str) -> NamespaceHandle:
    if find_namespace(client, name) is not None:
        return open_existing(client, name)
    return client.open_namespace(name, kind=NamespaceKind.OBJECT, mode=mode)


def _said(state: CommitState) -> str:
    return (
        "not stored: the namespace has that block" if state is CommitState.HAVE_IT else f"stored ({state.name.lower()})"
    )
