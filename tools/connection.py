"""How commands reach the daemon: which socket, how a namespace is opened by its name alone, and what a shell completes.

Completion asks the daemon with a short deadline, and completes nothing when there is none: a shell must not hang.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from mooncask.client.socket_path import VARIABLES, default_socket_path
from mooncask.errors import MooncaskError, NoSuchNamespace

if TYPE_CHECKING:
    from mooncask.client.local import LocalClient
    from mooncask.client.namespace import NamespaceHandle
    from mooncask.client.wire import NamespaceStat

DEADLINE_SECONDS = 30.0
COMPLETION_SECONDS = 0.5
COMPLETED_KEYS = 50


@contextmanager
def connected(socket: str | None, deadline_seconds: float = DEADLINE_SECONDS) -> "Iterator[LocalClient]":
    """A client for one command. Raises DaemonUnavailable."""
    from mooncask.client.local import LocalClient

    client = LocalClient.connect(
        socket_of(socket), name=f"mooncask-{os.getpid()}", deadline_seconds=deadline_seconds, populate=False
    )
    try:
        yield client
    finally:
        client.close()


def socket_of(socket: str | None) -> str:
    """The socket that was named, or else where this user's daemon listens."""
    return socket or default_socket_path()


def find_namespace(client: "LocalClient", name: str) -> "NamespaceStat | None":
    """What the daemon says of the namespace; None where it has none of that name for this user."""
    return next((found for found in client.status().namespaces if found.name == name), None)


def the_namespace(client: "LocalClient", name: str) -> "NamespaceStat":
    """The same. Raises NoSuchNamespace."""
    found = find_namespace(client, name)
    if found is None:
        raise NoSuchNamespace(name)
    return found


def open_existing(client: "LocalClient", name: str) -> "NamespaceHandle":
    """Opens a namespace of either kind with the family it already has. Raises NoSuchNamespace."""
    from mooncask.client.listed_namespace import open_as_listed

    return open_as_listed(client, the_namespace(client, name))


def is_kv(namespace: "NamespaceHandle") -> bool:
    return str(namespace.kind) == "kv"


# --- completion ------------------------------------------------------------------------------------------------------


def complete_namespace(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of namespaces that start so."""
    try:
        with connected(ctx.params.get("socket"), COMPLETION_SECONDS) as client:
            return [found.name for found in client.status().namespaces if found.name.startswith(incomplete)]
    except (MooncaskError, OSError):
        return []


def complete_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """Keys of the namespace that was typed before, as many as a terminal shows."""
    from mooncask.tools.keys import format_key, parse_prefix

    try:
        with connected(ctx.params.get("socket"), COMPLETION_SECONDS) as client:
            namespace = open_existing(client, str(ctx.params.get("namespace")))
            prefix = parse_prefix(incomplete, is_kv(namespace))
            page = client.list_blocks(namespace, prefix=prefix, limit=COMPLETED_KEYS)
            keys = [format_key(block.key, is_kv(namespace)) for block in page.blocks]
    except (MooncaskError, OSError):
        return []
    return [key for key in keys if key.startswith(incomplete)]


Socket = Annotated[
    str | None,
    typer.Option(
        help="Path of the daemon's socket; by default where the daemon of this user listens.",
        envvar=list(VARIABLES),
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
Namespace = Annotated[str, typer.Argument(help="Name of a namespace.", metavar="NS", autocompletion=complete_namespace)]
Key = Annotated[
    str,
    typer.Argument(help="Key of a block: text, or in a KV namespace hex.", metavar="KEY", autocompletion=complete_key),
]
Keys = Annotated[
    list[str],
    typer.Argument(
        help="Keys of blocks: text, or in a KV namespace hex.", metavar="KEY...", autocompletion=complete_key
    ),
]
