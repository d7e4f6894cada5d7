"""What hardware costs and how fast it is: a TOML file in, one frozen, validated object out.

Units stand in the names; a gib is 2^30 bytes, a gigabyte 1e9. Money is dollars, but any currency will do.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from mooncask.conductor.models.analytical import find_gpu
from mooncask.errors import BadArgument

HOURS_PER_MONTH = 730.0


@dataclass(frozen=True, slots=True)
class Dram:
    """Host memory for KV; `gib_per_node_max` is what one node can give to it."""

    dollars_per_gib_month: float
    gib_per_node_max: float = 1024.0


@dataclass(frozen=True, slots=True)
class Nvme:
    """Disks for KV; the speed is that of reading on one node."""

    dollars_per_gib_month: float
    gib_per_node_max: float = 16384.0
    gigabytes_per_second: float = 6.0


@dataclass(frozen=True, slots=True)
class Node:
    """A prefill node with its GPUs and without KV memory.

    `mfu` is the share of the GPUs' peak that a prefill reaches. `nodes_max` is how many can be had.
    """

    dollars_per_hour: float
    gpu: str
    gpus: int = 8
    mfu: float = 0.5
    host_to_device_gigabytes_per_second: float = 89.0
    network_gigabytes_per_second: float = 87.0
    nodes_max: int = 64


@dataclass(frozen=True, slots=True)
class Decode:
    """A decode node. `costs`: "analytical", from the GPU's bandwidth at `efficiency`, or "fitted", measurements of a 70B model
    on 8 A800 whatever the names say. `memory_share` of the GPUs' memory is for weights and KV.
    """

    dollars_per_hour: float
    gpu: str
    gpus: int = 8
    costs: str = "analytical"
    efficiency: float = 0.6
    memory_share: float = 0.9
    nodes_max: int = 64


@dataclass(frozen=True, slots=True)
class Prices:
    """`decode` is, where the file does not say, a node like the prefill nodes."""

    dram: Dram
    nvme: Nvme
    node: Node
    decode: Decode

    def dollars_per_month(self, dram_gib: float, nvme_gib: float, nodes: int) -> float:
        """What a mix costs."""
        memory = dram_gib * self.dram.dollars_per_gib_month + nvme_gib * self.nvme.dollars_per_gib_month
        return memory + nodes * self.node.dollars_per_hour * HOURS_PER_MONTH


_Section = TypeVar("_Section", Dram, Nvme, Node, Decode)


def load_prices(path: Path) -> Prices:
    """Prices from a file; raises BadArgument with the key, its value and what is allowed."""
    try:
        return parse_prices(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as exc:
        raise BadArgument("--prices", str(path), f"cannot be read: {exc}") from exc


def parse_prices(text: str, source: str) -> Prices:
    """Prices from TOML text; `source` names it in errors. Raises BadArgument."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise BadArgument(source, "not TOML", str(exc)) from exc
    known = ("dram", "nvme", "node", "decode")
    for name in tables:
        _check_known(name, tables[name], known)
    dram, nvme, node = (_table(tables, name) for name in known[:3])
    prefill = _section(Node, "node", node)
    decode = _decode(_table(tables, "decode") if "decode" in tables else {}, prefill)
    prices = Prices(_section(Dram, "dram", dram), _section(Nvme, "nvme", nvme), prefill, decode)
    find_gpu(prices.node.gpu)
    return prices


def _decode(table: Mapping[str, object], prefill: Node) -> Decode:
    like = {"dollars_per_hour": prefill.dollars_per_hour, "gpu": prefill.gpu, "gpus": prefill.gpus}
    decode = _section(Decode, "decode", {**like, "nodes_max": prefill.nodes_max, **table})
    find_gpu(decode.gpu)
    if decode.costs not in ("analytical", "fitted"):
        raise BadArgument("decode.costs", repr(decode.costs), "one of analytical, fitted")
    return decode


def _table(tables: Mapping[str, object], name: str) -> Mapping[str, object]:
    table = tables.get(name)
    if not isinstance(table, dict):
        raise BadArgument(name, "missing" if table is None else repr(table), f"a table [{name}]")
    return table


def _section(kind: type[_Section], name: str, table: Mapping[str, object]) -> _Section:
    known = {field.name: field for field in fields(kind)}
    for key in table:
        _check_known(f"{name}.{key}", table[key], tuple(f"{name}.{field}" for field in known))
    values: dict[str, str | int | float] = {}
    for key, field in known.items():
        if key in table:
            values[key] = _value(f"{name}.{key}", table[key], field.type)
        elif field.default is MISSING:
            raise BadArgument(f"{name}.{key}", "missing", "has no default; write its value")
    return kind(**values)  # type: ignore[arg-type]  # each value has been checked against its field's type


def _check_known(key: str, value: object, known: tuple[str, ...]) -> None:
    if key not in known:
        close = get_close_matches(key, known, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise BadArgument(key, repr(value), f"{meant}known: {', '.join(known)}")


def _value(key: str, value: object, kind: object) -> str | int | float:
    """A field's value: text, a count from 1, or a number. Prices may be 0 and sizes too; speeds and shares may not."""
    if kind is str:
        if isinstance(value, str):
            return value
        raise BadArgument(key, repr(value), "a name in quotes")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadArgument(key, repr(value), "a number")
    if kind is int:
        if isinstance(value, int) and value >= 1:
            return value
        raise BadArgument(key, repr(value), "a whole number, at least 1")
    if key.endswith((".gigabytes_per_second", "_gigabytes_per_second")) and value <= 0:
        raise BadArgument(key, repr(value), "above 0")
    if key.endswith((".mfu", ".efficiency", ".memory_share")) and not 0 < value <= 1:
        raise BadArgument(key, repr(value), "above 0 and at most 1")
    if value < 0:
        raise BadArgument(key, repr(value), "at least 0")
    return float(value)
