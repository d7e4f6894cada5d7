"""A run's main figures as a Markdown table, from its JSON document: what README.md shows. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from mooncask.tools.bench.result import LIMIT, STORE
from mooncask.tools.bench.targets import GET_COPY, GET_IN_PLACE, MATCH, NVME_GET, NVME_PUT, PUT

HEADING = "| | Mooncask | beside it | share | target |\n|---|---|---|---|---|"
BLOCK_BYTES = 2 << 20

Row = Mapping[str, Any]


def summary(document: Mapping[str, Any]) -> str:
    """Machine, date and command, then a table: measures of blocks of 2 MiB beside their limits and the peers, and facts."""
    measures: Sequence[Row] = document["measures"]
    by_name = {(row["system"], row["name"], row["block_bytes"]): row for row in measures}
    wanted = [(GET_IN_PLACE, BLOCK_BYTES), (MATCH, 0)]
    wanted += [(name, BLOCK_BYTES) for name in (GET_COPY, PUT, NVME_PUT, NVME_GET, "HTTP put", "HTTP get")]
    found = [by_name[(STORE, *key)] for key in wanted if (STORE, *key) in by_name]
    rows = [
        _measure(row, [by_name[(LIMIT, row["limit"], row["block_bytes"])], *_peers(measures, row)]) for row in found
    ]
    rows += [_fact(row) for row in document["facts"] if row["target"]]
    return "\n".join([_head(document), "", HEADING, *rows])


def _head(document: Mapping[str, Any]) -> str:
    machine = document["machine"]
    gib, kernel = machine["memory_bytes"] / (1 << 30), machine["kernel"].partition("-")[0]
    where = (
        f"{machine['processor']}, {machine['cores']} cores, {gib:.0f} GiB, Linux {kernel}, Python {machine['python']}"
    )
    return f"`{document['command']}` on {where}, {document['date'][:10]}; batches of 32 blocks of 2 MiB:"


def _measure(row: Row, others: Sequence[Row]) -> str:
    beside = "; ".join(f"{_name(other)}: {_figure(other)}" for other in others)
    return f"| {row['name']} | {_figure(row)} | {beside} | {row['ratio']:.2f} | {_verdict(row)} |"


def _peers(measures: Sequence[Row], ours: Row) -> list[Row]:
    """The same action on the same blocks by other stores."""
    same = [row for row in measures if (row["name"], row["block_bytes"]) == (ours["name"], ours["block_bytes"])]
    return [row for row in same if row["system"] not in (STORE, LIMIT)]


def _name(row: Row) -> str:
    return str(row["name"] if row["system"] == LIMIT else row["system"])


def _fact(row: Row) -> str:
    return f"| {row['name']} | {row['value']:.3g} {row['unit']} | | | {_verdict(row)} |"


def _figure(row: Row) -> str:
    if row["gb_per_second"] is not None:
        return f"{row['gb_per_second']:.2f} GB/s"
    return f"{row['p50_us']:,.0f} µs (p99 {row['p99_us']:,.0f})"


def _verdict(row: Row) -> str:
    if row["met"] is None:
        return ""
    return f"{row['target']}: {'met' if row['met'] else '**missed**'}"
