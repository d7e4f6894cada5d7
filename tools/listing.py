"""`mooncask ls` and `stat`: what the daemon has, as tables or JSON."""

import heapq
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.wire import BlockStat, Status, Tier, TierStat
from mooncask.errors import NoSuchBlock
from mooncask.tools.block_walk import all_blocks, tier_names
from mooncask.tools.connection import (
    Json,
    Socket,
    complete_key,
    complete_namespace,
    connected,
    is_kv,
    open_existing,
    socket_of,
    the_namespace,
)
from mooncask.tools.keys import format_key, format_seconds, format_size, parse_key, parse_prefix
from mooncask.tools.namespace_table import namespace_document, print_namespace, print_namespaces
from mooncask.tools.output import Column, console, print_json, print_table, printable
from mooncask.tools.where import Holders, find_holders, holders_text


class Order(StrEnum):
    """What `ls` sorts by."""

    KEY = "key"
    SIZE = "size"
    HITS = "hits"
    AGE = "age"


SORTED_BY: dict[Order, Callable[[BlockStat], float]] = {
    Order.SIZE: lambda block: block.size,
    Order.HITS: lambda block: block.hits,
    Order.AGE: lambda block: block.created_seconds,
}
"""The largest come first: the biggest, the most read, the newest."""


def ls(
    namespace: Annotated[
        str | None,
        typer.Argument(help="A namespace; without it, list those.", metavar="[NS]", autocompletion=complete_namespace),
    ] = None,
    prefix: Annotated[
        str, typer.Argument(help="Only keys that start with this.", metavar="[PREFIX]", autocompletion=complete_key)
    ] = "",
    prefix_option: Annotated[str, typer.Option("--prefix", help="The same as PREFIX.")] = "",
    long: Annotated[bool, typer.Option("--long", "-l", help="Show all that is known of each block.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most this many keys.")] = 1000,
    sort: Annotated[
        Order, typer.Option(help="By key, or the largest (size), most read (hits) or newest (age) first.")
    ] = Order.KEY,
    where: Annotated[
        bool, typer.Option("--where", help="Also which nodes have each block, in which of their tiers.")
    ] = False,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """List namespaces, or the blocks of one in the order of their keys."""
    with connected(socket) as client:
        if namespace is None:
            print_namespaces(client.status().namespaces, as_json)
            return
        handle = open_existing(client, namespace)
        found, more = _chosen(client, handle, prefix_option or prefix, sort, limit)
    holders = find_holders(socket_of(socket), namespace, found, is_kv(handle)) if where else None
    _print_blocks(handle, found, more, long, as_json, holders)


def stat(
    namespace: Annotated[
        str | None,
        typer.Argument(help="Without it, the daemon itself.", metavar="[NS", autocompletion=complete_namespace),
    ] = None,
    key: Annotated[
        str | None,
        typer.Argument(
            help="A block's key: text, or hex in a KV namespace. Without it, the namespace.",
            metavar="KEY]",
            autocompletion=complete_key,
        ),
    ] = None,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Show the daemon with its tiers and counters, a namespace with its family, or one block."""
    with connected(socket) as client:
        if namespace is None:
            _print_status(client.status(), as_json)
            return
        if key is None:
            print_namespace(the_namespace(client, namespace), as_json)
            return
        handle = open_existing(client, namespace)
        (found,) = client.stat(handle, [parse_key(key, is_kv(handle))])
        if found is None:
            raise NoSuchBlock(namespace, key)
        _print_block(handle, found, as_json)


def block_document(block: BlockStat, kv: bool) -> dict[str, Any]:
    """One block as JSON: digests in hex, tiers by name."""
    plain: dict[str, object] = msgspec.structs.asdict(block)
    plain |= {
        "key": format_key(block.key, kv),
        "parent": format_key(block.parent, kv),
        "checksum": block.checksum.hex(),
        "tiers": tier_names(block),
    }
    return plain


# --- choosing --------------------------------------------------------------------------------------------------------


def _chosen(
    client: LocalClient, namespace: NamespaceHandle, prefix: str, sort: Order, limit: int
) -> tuple[list[BlockStat], bool]:
    """At most `limit` blocks, and whether there are more."""
    kv = is_kv(namespace)
    blocks = all_blocks(client, namespace, parse_prefix(prefix, kv))
    wanted = (block for block in blocks if format_key(block.key, kv).startswith(prefix))
    if sort is Order.KEY:
        return _take(wanted, limit)
    found = heapq.nlargest(limit + 1, wanted, key=SORTED_BY[sort])
    return found[:limit], len(found) > limit


def _take(blocks: Iterator[BlockStat], limit: int) -> tuple[list[BlockStat], bool]:
    found = [block for _, block in zip(range(limit), blocks, strict=False)]
    return found, len(found) == limit and next(blocks, None) is not None


# --- showing ---------------------------------------------------------------------------------------------------------


def _print_blocks(
    namespace: NamespaceHandle,
    blocks: list[BlockStat],
    more: bool,
    long: bool,
    as_json: bool,
    holders: Holders | None,
) -> None:
    kv = is_kv(namespace)
    if as_json:
        print_json(_blocks_document(blocks, more, kv, holders))
        return
    headings = ("key", "size", "tiers", "durable", "hits")
    further = ("age", "depth", "tokens", "pins", "leases", "ttl", "parent", "checksum") if long else ()
    nodes = ("nodes",) if holders is not None else ()
    right = {"size", "hits", "age", "depth", "tokens", "pins", "leases", "ttl"}
    now = time.time()
    print_table(
        [Column(heading, right=heading in right) for heading in (*headings, *nodes, *further)],
        [[*_row(block, kv), *_nodes(block, holders), *(_further(block, kv, now) if long else ())] for block in blocks],
    )
    if holders is not None and holders.silent:
        console().print(f"no answer from {', '.join(map(printable, holders.silent))}: what they have is not shown")
    if more:
        console().print("... and more; --limit shows them")


def _blocks_document(blocks: list[BlockStat], more: bool, kv: bool, holders: Holders | None) -> dict[str, object]:
    if holders is None:
        return {"blocks": [block_document(block, kv) for block in blocks], "more": more}
    shown = [block_document(block, kv) | {"nodes": holders.of(block)} for block in blocks]
    return {"blocks": shown, "more": more, "silent": holders.silent}


def _nodes(block: BlockStat, holders: Holders | None) -> list[str]:
    return [] if holders is None else [printable(holders_text(holders.of(block)))]


def _row(block: BlockStat, kv: bool) -> list[str]:
    durable = "yes" if block.durable else "no"
    return [
        format_key(block.key, kv),
        format_size(block.size),
        " ".join(tier_names(block)),
        durable,
        f"{block.hits:,}",
    ]


def _further(block: BlockStat, kv: bool, now: float) -> list[str]:
    age = format_seconds(max(0.0, now - block.created_seconds))
    ttl = format_seconds(block.ttl_seconds) if block.ttl_seconds else "-"
    numbers = [f"{number:,}" for number in (block.depth, block.tokens, block.pins, block.leases)]
    return [age, *numbers, ttl, format_key(block.parent, kv) or "-", block.checksum.hex()]


def _print_block(namespace: NamespaceHandle, block: BlockStat, as_json: bool) -> None:
    document = block_document(block, is_kv(namespace))
    if as_json:
        print_json(document)
        return
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(block.created_seconds))
    shown = document | {
        "size": f"{block.size:,} bytes",
        "tiers": " ".join(tier_names(block)),
        "ttl_seconds": format_seconds(block.ttl_seconds) if block.ttl_seconds else "none",
        "created_seconds": created,
    }
    names = {"ttl_seconds": "ttl", "created_seconds": "created"}
    rows = [[names.get(name, name), str(value)] for name, value in shown.items()]
    print_table([Column("field"), Column("value")], rows)


def _print_status(status: Status, as_json: bool) -> None:
    if as_json:
        print_json(_status_document(status))
        return
    state = "ready" if status.ready else "starting"
    uptime = format_seconds(status.uptime_seconds)
    clients = "1 client" if status.clients == 1 else f"{status.clients} clients"
    console().print(f"node {status.node}, version {status.version}, {state}, up {uptime}, {clients}")
    sizes = ("used", "capacity", "pinned", "leased", "reserved")
    columns = [Column("tier"), Column("state"), Column("policy"), Column("blocks", right=True)]
    print_table([*columns, *(Column(size, right=True) for size in sizes)], [_tier_row(tier) for tier in status.tiers])
    counted = [[name, f"{value:,}"] for name, value in sorted(status.counters.items()) if value]
    if counted:
        print_table([Column("counter"), Column("value", right=True)], counted)


def _tier_row(tier: TierStat) -> list[str]:
    sizes = (tier.used_bytes, tier.capacity_bytes, tier.pinned_bytes, tier.leased_bytes, tier.reserved_bytes)
    return [Tier(tier.tier).name.lower(), tier.state, tier.policy, f"{tier.blocks:,}", *map(format_size, sizes)]


def _status_document(status: Status) -> dict[str, object]:
    plain: dict[str, object] = msgspec.to_builtins(msgspec.structs.asdict(status) | {"tiers": [], "namespaces": []})
    plain["tiers"] = [msgspec.structs.asdict(tier) | {"tier": Tier(tier.tier).name.lower()} for tier in status.tiers]
    plain["namespaces"] = [namespace_document(found) for found in status.namespaces]
    del plain["id"]
    return plain
