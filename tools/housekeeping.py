"""`mooncask evict` (and `rm`), `pin`, `unpin` and `ttl`: what stays, for how long, and what goes."""

from typing import Annotated

import typer

from mooncask.errors import BadRequest
from mooncask.tools.connection import Json, Keys, Namespace, Socket, complete_key, connected, open_existing
from mooncask.tools.keys import format_seconds, format_size, parse_duration
from mooncask.tools.output import Column, confirmed, counted, print_json, print_table, printable
from mooncask.tools.selection import Selection, select, select_prefix

Chain = Annotated[bool, typer.Option("--chain", help="Also all blocks that lead to each KEY, from the chain's first.")]


def evict(
    namespace: Namespace,
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            help="Keys of blocks: text, or in a KV namespace hex.", metavar="[KEY...]", autocompletion=complete_key
        ),
    ] = None,
    chain: Chain = False,
    prefix: Annotated[
        str | None, typer.Option(help="All blocks whose keys start so; asks first. An empty one means all.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Delete blocks from all tiers. Whoever is reading one may finish."""
    if (prefix is None) == (not keys):
        raise BadRequest("evict: give either keys or --prefix; mooncask ls NS lists the keys")
    with connected(socket) as client:
        handle = open_existing(client, namespace)
        if prefix is None:
            chosen = select(client, handle, keys or [], chain)
        else:
            chosen = select_prefix(client, handle, prefix)
            confirmed(f"delete {counted(len(chosen.blocks), 'block')} ({format_size(chosen.size_bytes)})", yes)
        # What continues a chain goes before what it continues, so that a half-done delete leaves no orphans.
        count = client.evict(handle, chosen.keys[::-1]) if chosen.blocks else 0
    _say("deleted", chosen, count, as_json)


def pin(namespace: Namespace, keys: Keys, chain: Chain = False, socket: Socket = None, as_json: Json = False) -> None:
    """Keep blocks from being evicted until as many unpins: pins are counted."""
    with connected(socket) as client:
        chosen = select(client, open_existing(client, namespace), keys, chain)
        count = client.pin(chosen.namespace, chosen.keys) if chosen.blocks else 0
    _say("pinned", chosen, count, as_json)


def unpin(namespace: Namespace, keys: Keys, chain: Chain = False, socket: Socket = None, as_json: Json = False) -> None:
    """Take one pin off each block; those that have none stay as they are."""
    with connected(socket) as client:
        chosen = select(client, open_existing(client, namespace), keys, chain)
        count = client.unpin(chosen.namespace, chosen.keys) if chosen.blocks else 0
    _say("unpinned", chosen, count, as_json)


def ttl(
    namespace: Namespace,
    keys: Keys,
    after: Annotated[
        str | None, typer.Option("--for", help="Vanish after this time: 90s, 10min, 2h, 7d.", metavar="TIME")
    ] = None,
    never: Annotated[bool, typer.Option("--never", help="Stay until evicted.")] = False,
    chain: Chain = False,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Let blocks vanish after a time (--for), or never; without either, show the time that each has left."""
    if after is not None and never:
        raise BadRequest("ttl: give --for or --never, not both")
    seconds = parse_duration(after) if after is not None else None
    with connected(socket) as client:
        chosen = select(client, open_existing(client, namespace), keys, chain)
        if seconds is None and not never:
            _show_ttl(chosen, as_json)
            return
        count = client.set_ttl(chosen.namespace, chosen.keys, seconds) if chosen.blocks else 0
    what = "kept until evicted" if seconds is None else f"to vanish in {format_seconds(seconds)}"
    _say(what, chosen, count, as_json, verb="changed")


def _show_ttl(chosen: Selection, as_json: bool) -> None:
    found = [(key, block.ttl_seconds) for key, block in zip(chosen.names, chosen.blocks, strict=True)]
    if as_json:
        print_json(
            {
                "namespace": chosen.namespace.name,
                "blocks": [{"key": key, "ttl_seconds": seconds} for key, seconds in found],
                "missing": chosen.missing,
            }
        )
    else:
        rows = [[key, format_seconds(seconds) if seconds else "none"] for key, seconds in found]
        print_table([Column("key"), Column("ttl", right=True)], rows)
    chosen.raise_if_missing()


def _say(what: str, chosen: Selection, count: int, as_json: bool, verb: str = "") -> None:
    """The result; then NoSuchBlock for keys that were not here: the others are done all the same."""
    if as_json:
        print_json({"namespace": chosen.namespace.name, verb or what: count, "missing": chosen.missing})
    elif chosen.blocks:
        size = format_size(chosen.size_bytes)
        typer.echo(f"{printable(chosen.namespace.name)}: {counted(count, 'block')} {what} ({size})")
    chosen.raise_if_missing()
