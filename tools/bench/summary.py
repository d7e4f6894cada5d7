"""A run's main figures as a Markdown table, from its JSON document: what README.md shows. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from mooncask.tools.bench.result import LIMIT, STORE
from mooncask.tools.bench.targets import GET_COPY, GET_IN_PLACE, MATCH, NVME_GET, NVME_PUT, PUT

HEADING = "| | Mooncask | beside it | share | target |\n|---|---|---|---|---|"
BLOCK_BYTES = 2 << 20

Row = Mapping[str, Any]


def summary(document: Mapping[str, Any], block_bytes: int = BLOCK_BYTES) -> str:
    """Machine, date and command; a row a measure of one block size with its limit, a row a peer's measure, a row a fact."""
    measures: Sequence[Row] = document["measures"]
    by_name = {(row["system"], row["name"], row["block_bytes"]): row for row in measures}
    wanted = [(GET_IN_PLACE, block_bytes), (MATCH, 0)]
    wanted += [(name, block_bytes) for name in (GET_COPY, PUT, NVME_PUT, NVME_GET, "HTTP put", "HTTP get")]
    found = [by_name[(STORE, *key)] for key in wanted if (STORE, *key) in by_name]
    rows = [_measure(row, by_name[(LIMIT, row["limit"], row["block_bytes"])]) for row in found]
    rows += [_peer(row) for row in measures if row["block_bytes"] == block_bytes and _is_peer(row)]
    rows += [_fact(row) for row in document["facts"] if row["target"]]
    return "\n".join([_head(document), "", HEADING, *rows])


def _head(document: Mapping[str, Any]) -> str:
    machine = document["machine"]
    gib = machine["memory_bytes"] / (1 << 30)
    where = f"{machine['processor']}, {machine['cores']} cores, {gib:.0f} GiB, Linux {machine['kernel']}"
    return f"`{document['command']}` on {where}, Python {machine['python']}, {document['date'][:10]}; batches of 32 blocks of 2 MiB:"


def _measure(row: Row, limit: Row) -> str:
    beside = f"{row['limit']}: {_figure(limit)}"
    return f"| {row['name']} | {_figure(row)} | {beside} | {row['ratio']:.2f} | {_verdict(row)} |"


def _peer(row: Row) -> str:
    return f"| {row['name']} | | {row['system']}: {_figure(row)} | | |"


def _is_peer(row: Row) -> bool:
    return row["system"] not in (STORE, LIMIT)


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
