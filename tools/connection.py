"""How commands reach the daemon: which socket, and how a namespace is opened by its name alone."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from mooncask.client.family import Family
from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.socket_path import VARIABLES, default_socket_path
from mooncask.client.wire import NamespaceKind, NamespaceStat
from mooncask.errors import NoSuchNamespace

DEADLINE_SECONDS = 30.0

Socket = Annotated[
    str | None,
    typer.Option(
        help="Path of the daemon's socket; by default where the daemon of this user listens.",
        envvar=list(VARIABLES),
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
Namespace = Annotated[str, typer.Argument(help="Name of a namespace.", metavar="NS")]


@contextmanager
def connected(socket: str | None) -> Iterator[LocalClient]:
    """A client for one command. Raises DaemonUnavailable."""
    client = LocalClient.connect(
        socket or default_socket_path(), name=f"mooncask-{os.getpid()}", deadline_seconds=DEADLINE_SECONDS
    )
    try:
        yield client
    finally:
        client.close()


def find_namespace(client: LocalClient, name: str) -> NamespaceStat | None:
    """What the daemon says of the namespace; None where it has none of that name for this user."""
    return next((found for found in client.status().namespaces if found.name == name), None)


def open_existing(client: LocalClient, name: str) -> NamespaceHandle:
    """Opens a namespace of either kind with the family it already has. Raises NoSuchNamespace."""
    found = find_namespace(client, name)
    if found is None:
        raise NoSuchNamespace(name)
    return client.open_namespace(name, kind=found.kind, family=Family(found.family), shard=found.shard, create=False)


def is_kv(namespace: NamespaceHandle) -> bool:
    return namespace.kind is NamespaceKind.KV
