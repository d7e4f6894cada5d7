"""`mooncask ls` and `stat`: what the daemon has, as tables or JSON."""

from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.wire import BlockStat, NamespaceStat, Status, Tier, TierStat
from mooncask.errors import NoSuchBlock
from mooncask.tools.connection import Json, Socket, connected, is_kv, open_existing
from mooncask.tools.keys import format_key, format_seconds, format_size, parse_key
from mooncask.tools.output import Column, console, print_json, print_table

PAGE = 1000


def ls(
    namespace: Annotated[
        str | None, typer.Argument(help="A namespace; without it, list those.", metavar="[NS]")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Only keys that start with this.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most this many keys.")] = 1000,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """List namespaces, or the blocks of one in the order of their keys."""
    with connected(socket) as client:
        if namespace is None:
            _print_namespaces(client.status().namespaces, as_json)
            return
        handle = open_existing(client, namespace)
        found, more = _take(all_blocks(client, handle, parse_key(prefix, is_kv(handle))), limit)
        _print_blocks(handle, found, more, as_json)


def stat(
    namespace: Annotated[str | None, typer.Argument(help="Without it, the daemon itself.", metavar="[NS")] = None,
    key: Annotated[
        str | None, typer.Argument(help="A block's key: text, or hex in a KV namespace.", metavar="KEY]")
    ] = None,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Show the daemon with its tiers and counters, or one block."""
    with connected(socket) as client:
        if namespace is None:
            _print_status(client.status(), as_json)
            return
        if key is None:
            raise typer.BadParameter("give a key as well; mooncask ls NS lists them", param_hint="KEY")
        handle = open_existing(client, namespace)
        (found,) = client.stat(handle, [parse_key(key, is_kv(handle))])
        if found is None:
            raise NoSuchBlock(namespace, key)
        _print_block(handle, found, as_json)


def all_blocks(client: LocalClient, namespace: NamespaceHandle, prefix: bytes = b"") -> Iterator[BlockStat]:
    """Every block, page by page. What is put or deleted meanwhile may or may not be among them."""
    after = b""
    while True:
        page = client.list_blocks(namespace, prefix=prefix, after=after, limit=PAGE)
        yield from page.blocks
        if not page.more or not page.blocks:
            return
        after = page.blocks[-1].key


def block_document(block: BlockStat, kv: bool) -> dict[str, object]:
    """One block as JSON: digests in hex, tiers by name."""
    plain: dict[str, object] = msgspec.structs.asdict(block)
    plain |= {
        "key": format_key(block.key, kv),
        "parent": format_key(block.parent, kv),
        "checksum": block.checksum.hex(),
        "tiers": tier_names(block),
    }
    return plain


def tier_names(block: BlockStat) -> list[str]:
    return [Tier(tier).name.lower() for tier in block.tiers]


def _take(blocks: Iterator[BlockStat], limit: int) -> tuple[list[BlockStat], bool]:
    found = [block for _, block in zip(range(limit), blocks, strict=False)]
    return found, len(found) == limit and next(blocks, None) is not None


def _print_namespaces(namespaces: list[NamespaceStat], as_json: bool) -> None:
    if as_json:
        print_json([msgspec.structs.asdict(found) | {"kind": found.kind.value} for found in namespaces])
        return
    columns = [
        Column("namespace"),
        Column("kind"),
        Column("mode"),
        Column("blocks", right=True),
        Column("size", right=True),
    ]
    rows = [[n.name, n.kind.value, n.mode, f"{n.blocks:,}", format_size(n.bytes)] for n in namespaces]
    print_table(
        [*columns, Column("tenant"), Column("shard")],
        [[*row, n.tenant, n.shard] for row, n in zip(rows, namespaces, strict=True)],
    )


def _print_blocks(namespace: NamespaceHandle, blocks: list[BlockStat], more: bool, as_json: bool) -> None:
    kv = is_kv(namespace)
    if as_json:
        print_json({"blocks": [block_document(block, kv) for block in blocks], "more": more})
        return
    columns = [
        Column("key"),
        Column("size", right=True),
        Column("tiers"),
        Column("durable"),
        Column("hits", right=True),
    ]
    print_table(
        columns,
        [
            [
                format_key(b.key, kv),
                format_size(b.size),
                " ".join(tier_names(b)),
                "yes" if b.durable else "no",
                f"{b.hits:,}",
            ]
            for b in blocks
        ],
    )
    if more:
        console().print("... and more; --limit shows them")


def _print_block(namespace: NamespaceHandle, block: BlockStat, as_json: bool) -> None:
    document = block_document(block, is_kv(namespace))
    if as_json:
        print_json(document)
        return
    shown = document | {"size": f"{block.size:,} bytes", "tiers": " ".join(tier_names(block))}
    print_table([Column("field"), Column("value")], [[name, str(value)] for name, value in shown.items()])


def _print_status(status: Status, as_json: bool) -> None:
    if as_json:
        print_json(_status_document(status))
        return
    state = "ready" if status.ready else "starting"
    uptime = format_seconds(status.uptime_seconds)
    console().print(f"node {status.node}, version {status.version}, {state}, up {uptime}, {status.clients} clients")
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
    plain["namespaces"] = [msgspec.structs.asdict(n) | {"kind": n.kind.value} for n in status.namespaces]
    del plain["id"]
    return plain
