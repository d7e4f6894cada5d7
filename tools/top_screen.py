"""The screen of `mooncask top`: an overview in, something that rich draws out. Pure.

What is narrow is stacked; on a wide terminal flows, namespaces and clients stand beside the chains. Lists are cut to the
terminal's height, those that matter most first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mooncask.client.control import ClientView, Flow, HotChain, NamespaceView, Overview, PeerView, TierView, WhatIf
from mooncask.tools.keys import format_seconds, format_size
from mooncask.tools.output import printable

BAR_CELLS = 20
NARROW, WIDE = 104, 140
KEY_CELLS = 12
FLOW_ORDER = ("hit", "miss", "put", "promote", "demote", "load", "write", "evict", "http_in", "http_out")
FLOW_WORDS = {"http_in": "HTTP in", "http_out": "HTTP out"}
WORDS = {
    *("tier", "fill", "policy", "state", "flow", "hottest chain", "up to block", "tiers", "what if"),
    *("namespace", "kind", "mode", "tenant", "shard", "client", "peer", "address"),
}
"""Columns of words; the others are of numbers, and stand to the right."""
FULL_SHARE, HIGH_SHARE = 0.95, 0.8


@dataclass(frozen=True, slots=True)
class Room:
    """Where it is drawn: cells and lines; `lines` 0 = as many as there are. `whole_keys`: keys are not cut."""

    width: int
    lines: int = 0
    whole_keys: bool = False


def screen(overview: Overview, room: Room) -> RenderableType:
    """One frame."""
    parts: list[RenderableType] = [*header(overview), Text(""), tiers(overview.tiers, room.width < NARROW), Text("")]
    used = 6 + len(overview.tiers)
    lists = _lists(overview, room)
    left = max(0, room.lines - used) if room.lines else 0
    if room.width >= WIDE:
        parts.append(_side_by_side(lists, left))
    else:
        parts += _stacked(lists, left)
    return Group(*parts)


def waiting(socket: str, why: str, last: RenderableType | None) -> RenderableType:
    """The daemon does not answer: says so, above what was there last."""
    line = _line(f"waiting for the daemon at {socket}: {why}", "bold yellow")
    return Group(line, Text(""), last) if last is not None else Group(line)


def header(overview: Overview) -> list[Text]:
    """Who it is, and how it does."""
    state = "ready" if overview.ready else "starting"
    node = f"{overview.node}  mooncask {overview.version}  {state}  up {format_seconds(overview.uptime_seconds)}"
    parts = [
        f"{overview.requests_rate:,.0f} requests/s",
        f"hit rate {share(overview.hit_rate)} of tokens",
        f"dirty {format_size(overview.dirty_bytes)}",
    ]
    if overview.waiting_for_room:
        parts.append(f"{overview.waiting_for_room} waiting for room")
    return [_line(node, "bold"), _line("   ".join(parts))]


def tiers(found: Sequence[TierView], narrow: bool = False) -> Table:
    """A line a tier, with a bar of how full it is."""
    held = () if narrow else ("pinned", "leased", "reserved")
    table = _table("tier", "fill", "used", "of", "blocks", *held, "policy", "state")
    for tier in found:
        full = tier.used_bytes / tier.capacity_bytes if tier.capacity_bytes else 0.0
        sizes = () if narrow else (tier.pinned_bytes, tier.leased_bytes, tier.reserved_bytes)
        table.add_row(
            Text(tier.tier, style="bold"),
            bar(full),
            format_size(tier.used_bytes),
            format_size(tier.capacity_bytes),
            f"{tier.blocks:,}",
            *map(format_size, sizes),
            tier.policy,
            Text(tier.state, style="" if tier.state == "ok" else "bold red"),
        )
    return table


def bar(full: float) -> Text:
    """A share as a bar and in per cent."""
    cells = min(BAR_CELLS, max(1 if full else 0, round(full * BAR_CELLS)))
    style = "red" if full >= FULL_SHARE else "yellow" if full >= HIGH_SHARE else "green"
    return Text.assemble(("█" * cells, style), ("░" * (BAR_CELLS - cells), "dim"), f" {full * 100:3.0f}%")


def share(rate: float) -> str:
    """A rate in per cent; "-" where nothing was asked."""
    return "-" if rate < 0 else f"{rate * 100:.1f}%"


# --- lists -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _List:
    """`draw(n)` gives the first n of `rows` as a table; `empty` is said where there are none."""

    rows: int
    draw: Callable[[int], RenderableType]
    empty: str


def _lists(overview: Overview, room: Room) -> list[_List]:
    """In the order of how much they matter."""
    flows = _moving(overview.flows)
    chains = sorted(overview.hot_chains, key=lambda chain: -chain.rate)
    names = sorted(overview.namespaces, key=lambda found: -found.size_bytes)
    clients = sorted(overview.clients, key=lambda client: -client.leased_bytes)
    return [
        _List(len(flows), lambda n: _flow_table(flows[:n]), "nothing moves"),
        _List(len(chains), lambda n: _chain_table(chains[:n], room.whole_keys), "no chain is read"),
        _List(len(names), lambda n: _namespace_table(names[:n]), "no namespaces"),
        _List(len(clients), lambda n: _client_table(clients[:n]), "no clients"),
        _List(len(overview.what_if), lambda n: _what_if_table(overview.what_if[:n], overview.hit_rate), ""),
        _List(len(overview.peers), lambda n: _peer_table(overview.peers[:n]), ""),
    ]


def _stacked(lists: Sequence[_List], lines: int) -> list[RenderableType]:
    """`lines` 0 = all of all."""
    parts: list[RenderableType] = []
    shown = [found for found in lists if found.rows or found.empty]
    heights = share_lines([found.rows for found in shown], lines - 2 * len(shown)) if lines else None
    for i, found in enumerate(shown):
        rows = found.rows if heights is None else heights[i]
        if rows:
            parts += [found.draw(rows), Text("")]
        elif not found.rows:
            parts += [Text(found.empty, style="dim"), Text("")]
    return parts


def _side_by_side(lists: Sequence[_List], lines: int) -> RenderableType:
    flows, chains, names, *others = lists
    left = Group(*_stacked([chains, names], lines))
    right = Group(*_stacked([flows, *others], lines))
    return Columns([left, right], padding=(0, 4))


def share_lines(wanted: Sequence[int], lines: int) -> list[int]:
    """How many lines each list gets of what there is: an equal share, and what one does not need goes to the others."""
    given = [0] * len(wanted)
    left = max(0, lines)
    while left and any(have < want for have, want in zip(given, wanted, strict=True)):
        for i, want in enumerate(wanted):
            if left and given[i] < want:
                given[i] += 1
                left -= 1
    return given


def _moving(flows: Sequence[Flow]) -> list[Flow]:
    """Flows that ever moved anything, in the order in which bytes move through the store."""
    order = {kind: i for i, kind in enumerate(FLOW_ORDER)}
    return sorted(
        (flow for flow in flows if flow.total), key=lambda flow: (order.get(flow.kind, len(order)), flow.tier)
    )


def _flow_table(flows: Sequence[Flow]) -> Table:
    table = _table("flow", "tier", "bytes/s", "blocks/s", "bytes in all", "blocks in all")
    for flow in flows:
        style = "" if flow.rate else "dim"
        table.add_row(
            Text(FLOW_WORDS.get(flow.kind, flow.kind), style=style),
            Text(flow.tier or "-", style=style),
            Text(f"{format_size(flow.rate_bytes)}/s", style=style),
            Text(f"{flow.rate:,.1f}", style=style),
            Text(format_size(flow.total_bytes), style="dim"),
            Text(f"{flow.total:,}", style="dim"),
        )
    return table


def _chain_table(chains: Sequence[HotChain], whole_keys: bool) -> Table:
    table = _table("hottest chain", "up to block", "depth", "tokens", "size", "hits", "hits/s", "tiers")
    for chain in chains:
        table.add_row(
            printable(chain.namespace),
            chain.key if whole_keys else _cut(chain.key),
            f"{chain.depth:,}",
            f"{chain.tokens:,}",
            format_size(chain.size_bytes),
            f"{chain.hits:,}",
            f"{chain.rate:,.1f}",
            " ".join(chain.tiers),
        )
    return table


def _namespace_table(names: Sequence[NamespaceView]) -> Table:
    table = _table("namespace", "kind", "mode", "blocks", "size", "hit rate", "tenant", "shard")
    for found in names:
        table.add_row(
            printable(found.name),
            found.kind,
            found.mode,
            f"{found.blocks:,}",
            format_size(found.size_bytes),
            share(found.hit_rate),
            printable(found.tenant),
            printable(found.shard),
        )
    return table


def _client_table(clients: Sequence[ClientView]) -> Table:
    table = _table("client", "pid", "uid", "tenant", "connections", "leases", "leased", "reservations")
    for client in clients:
        table.add_row(
            printable(client.name),
            str(client.pid),
            str(client.uid),
            printable(client.tenant),
            f"{client.connections:,}",
            f"{client.leases:,}",
            format_size(client.leased_bytes),
            f"{client.reservations:,}",
        )
    return table


def _what_if_table(answers: Sequence[WhatIf], hit_rate: float) -> Table:
    table = _table("what if", "hit rate", "now", "look-ups sampled")
    for answer in answers:
        table.add_row(
            answer.text or answer.name, share(answer.hit_rate), share(hit_rate), f"{answer.sampled_accesses:,}"
        )
    return table


def _peer_table(peers: Sequence[PeerView]) -> Table:
    table = _table("peer", "state", "address")
    for peer in peers:
        table.add_row(printable(peer.name), peer.state, printable(peer.address))
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for heading in headings:
        justify: Literal["left", "right"] = "left" if heading in WORDS else "right"
        table.add_column(heading, justify=justify, no_wrap=True, overflow="ellipsis")
    return table


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _cut(key: str) -> str:
    return key if len(key) <= KEY_CELLS + 1 else key[:KEY_CELLS] + "…"
