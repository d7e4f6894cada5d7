"""`mooncask peers`: this node among others, as its daemon sees them."""

import time

import msgspec
import typer

from mooncask.client.control import Peers, PeerView
from mooncask.client.control_client import ControlClient
from mooncask.tools.connection import Json, Socket, socket_of
from mooncask.tools.keys import format_size
from mooncask.tools.output import Column, counted, print_json, print_table, printable

_COLUMNS = [
    Column("peer"),
    Column("epoch"),
    Column("state"),
    Column("address"),
    Column("transport"),
    Column("blocks", right=True),
    Column("pulled", right=True),
    Column("a second", right=True),
    Column("pushed", right=True),
    Column("lag", right=True),
    Column("failures", right=True),
    Column("wrong", right=True),
    Column("seen", right=True),
]


def peers(socket: Socket = None, as_json: Json = False) -> None:
    """Show the other nodes: whether they answer, what came from each and how fast, and what went wrong."""
    with ControlClient(socket_of(socket)) as control:
        found = control.peers()
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        _print(found)


def _print(found: Peers) -> None:
    if not found.address:
        typer.echo(f"{printable(found.node)} is alone: cluster.listen is empty")
        return
    pulled = f"{counted(found.blocks_pulled, 'block')} pulled ({format_size(found.bytes_pulled)})"
    typer.echo(
        f"{printable(found.node)} at {found.address}, {found.directory} directory {found.directory_state}; {pulled}"
    )
    typer.echo(_replicas(found))
    print_table(_COLUMNS, [_row(peer) for peer in found.peers])
    for peer in found.peers:
        if peer.problem:
            typer.echo(f"{printable(peer.name)}: {printable(peer.problem)}")


def _replicas(found: Peers) -> str:
    spare = f", {found.spares:,} of them spare" if found.spares else ""
    here = f"{counted(found.replicas, 'block')} that others have too{spare}"
    copied = f"{counted(found.blocks_pushed, 'block')} pushed, {found.pushes_refused:,} refused, {found.hot_blocks:,} were hot"
    dropped = f"{counted(found.replicas_dropped, 'replica')} dropped, {found.last_copies_kept:,} kept as last copies"
    return f"{here}; {copied}; {dropped}"


def _epoch_text(incarnation: str) -> str:
    """When this run of the node began, by its own clock: the second half of its incarnation is that time in nanoseconds."""
    if len(incarnation) != 32:
        return "-"
    return time.strftime("%m-%d %H:%M:%S", time.localtime(int(incarnation[16:], 16) / 1e9))


def _row(peer: PeerView) -> list[str]:
    return [
        printable(peer.name),
        _epoch_text(peer.incarnation),
        peer.state,
        printable(peer.address),
        peer.transport or "-",
        f"{peer.blocks_pulled:,}",
        format_size(peer.bytes_pulled),
        format_size(int(peer.rate_bytes)) if peer.rate_bytes else "-",
        f"{peer.blocks_pushed:,}",
        f"{1000 * peer.round_trip_seconds:.1f} ms" if peer.round_trip_seconds else "-",
        f"{peer.failures:,}",
        f"{peer.wrong:,}",
        f"{peer.seen_seconds:.0f} s" if peer.seen_seconds >= 0 else "-",
    ]
