"""`mooncask namespaces`: list, create and drop. An S3 bucket is an object namespace, and made here as well as there."""

from typing import Annotated, Any

import typer

from mooncask.client.http import HttpClient
from mooncask.client.wire import NamespaceKind
from mooncask.errors import BadRequest
from mooncask.tools.block_walk import all_blocks
from mooncask.tools.connection import (
    Json,
    Namespace,
    Socket,
    connected,
    find_namespace,
    open_existing,
    socket_of,
    the_namespace,
)
from mooncask.tools.default_command import DefaultsTo
from mooncask.tools.family_options import FamilyFields, HashName, parse_family
from mooncask.tools.keys import format_size
from mooncask.tools.namespace_table import print_namespace, print_namespaces
from mooncask.tools.output import confirmed, counted, print_json, printable

DROP_BATCH = 1000


class ListsByDefault(DefaultsTo):
    default = "list"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or [self.default])


namespaces = typer.Typer(cls=ListsByDefault, help="List, create and drop namespaces.", add_completion=False)


@namespaces.command("list")
def list_command(socket: Socket = None, as_json: Json = False) -> None:
    """List this user's namespaces, as mooncask ls does; the default."""
    with connected(socket) as client:
        print_namespaces(client.status().namespaces, as_json)


@namespaces.command()
def create(
    name: Annotated[str, typer.Argument(help="3 to 63 of a-z, 0-9, and . _ - inside.", metavar="NS")],
    kind: Annotated[NamespaceKind, typer.Option(help="What it holds.")] = NamespaceKind.OBJECT,
    family: FamilyFields = None,
    shard: Annotated[str, typer.Option(help="Which part of the KV, such as tp 0/2.")] = "",
    mode: Annotated[str, typer.Option(help="write_through, write_back or memory; the daemon's default else.")] = "",
    hash_name: HashName = "sha256",
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Make a namespace. Engines make theirs themselves; this is for objects, and to prepare one."""
    if kind is NamespaceKind.KV and not family:
        raise BadRequest(f"namespace {name}: one for KV needs its --family, field by field")
    with connected(socket) as client:
        if find_namespace(client, name) is not None:
            raise BadRequest(f"namespace {name} is there already; mooncask stat {name} shows it")
        client.open_namespace(name, parse_family(family or []), shard, mode, kind=kind, hash=hash_name)
        print_namespace(the_namespace(client, name), as_json)


@namespaces.command()
def drop(
    namespace: Namespace,
    with_blocks: Annotated[bool, typer.Option("--with-blocks", help="Also delete its blocks; asks first.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Drop a namespace that has no blocks, or with --with-blocks any."""
    deleted = 0
    with connected(socket) as client:
        found = the_namespace(client, namespace)
        if found.blocks and with_blocks:
            confirmed(f"drop {namespace} with {counted(found.blocks, 'block')} ({format_size(found.bytes)})", yes)
            handle = open_existing(client, namespace)
            keys = [block.key for block in all_blocks(client, handle)]
            for start in range(0, len(keys), DROP_BATCH):
                deleted += client.evict(handle, keys[start : start + DROP_BATCH])
    with HttpClient.beside(socket_of(socket)) as http:
        http.delete_namespace(namespace)
    if as_json:
        print_json({"namespace": namespace, "dropped": True, "deleted": deleted})
    else:
        typer.echo(f"{printable(namespace)}: dropped" + (f" with {counted(deleted, 'block')}" if deleted else ""))
