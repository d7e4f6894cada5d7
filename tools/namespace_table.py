"""Namespaces as tables and JSON: for `ls`, `stat` and `namespaces`."""

from collections.abc import Sequence

import msgspec

from mooncask.client.wire import NamespaceStat
from mooncask.tools.keys import format_size
from mooncask.tools.output import Column, print_json, print_table


def namespace_document(found: NamespaceStat) -> dict[str, object]:
    """One namespace as JSON."""
    plain: dict[str, object] = msgspec.structs.asdict(found)
    return plain | {"kind": found.kind.value}


def print_namespaces(namespaces: Sequence[NamespaceStat], as_json: bool) -> None:
    """A row a namespace."""
    if as_json:
        print_json([namespace_document(found) for found in namespaces])
        return
    columns = [
        Column("namespace"),
        Column("kind"),
        Column("mode"),
        Column("blocks", right=True),
        Column("size", right=True),
        Column("tenant"),
        Column("shard"),
    ]
    rows = [
        [n.name, n.kind.value, n.mode, f"{n.blocks:,}", format_size(n.bytes), n.tenant, n.shard] for n in namespaces
    ]
    print_table(columns, rows)


def print_namespace(found: NamespaceStat, as_json: bool) -> None:
    """All of one namespace, its family field by field."""
    if as_json:
        print_json(namespace_document(found))
        return
    rows = [
        ["kind", found.kind.value],
        ["mode", found.mode],
        ["tenant", found.tenant],
        ["shard", found.shard],
        ["blocks", f"{found.blocks:,}"],
        ["size", format_size(found.bytes)],
        *([f"family.{name}", value] for name, value in sorted(found.family.items())),
    ]
    print_table([Column("namespace"), Column(found.name)], rows)
