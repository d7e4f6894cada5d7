"""`where`: what other nodes have of blocks, in which tiers, or how they lost them. For people; no block moves (docs/PEERS.md).

Nodes that are said to have the blocks are asked first, then any others, up to NODES_MAX, all at once and until a deadline.
How long ago something left is told, not when: clocks of nodes differ.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from mooncask.daemon.directory.directory import NodeRecord
from mooncask.daemon.directory.have import decoded
from mooncask.daemon.insight.verdicts import Verdict, Verdicts, clock_text
from mooncask.daemon.peers.pull import Ways
from mooncask.daemon.peers.shared import SharedNamespaces
from mooncask.daemon.transport.transport import PeerInfo
from mooncask.errors import BadRequest, MooncaskError
from mooncask.tiers.namespace import Namespace

WHERE = "where"
KEYS_MAX = 1024
NODES_MAX = 64
LOCATE_SECONDS = 0.25
WORDS_SECONDS = 1.0
GONE_TOLD_MAX = 3
SLICE = 128


class Where(msgspec.Struct, frozen=True, array_like=True):
    """What have you of these blocks? At most KEYS_MAX."""

    ns_id: bytes
    keys: list[bytes]


class Told(msgspec.Struct, frozen=True, array_like=True):
    """One block: the tiers it is in, or a verdict of `control.WhyBlock` with what goes with it. An empty one: nothing is known."""

    tiers: list[str] = []
    verdict: str = ""
    age_seconds: float = -1.0
    """Since it left; -1 = not known."""
    tier: str = ""
    policy: str = ""


class There(msgspec.Struct, frozen=True, array_like=True):
    """Item by item."""

    blocks: list[Told]


@dataclass(frozen=True, slots=True)
class FromNode:
    """What one node told of each block; None: it did not answer in time."""

    name: str
    told: list[Told] | None


class Whereabouts:
    """Of one daemon: asks the others, and answers them."""

    def __init__(self, ways: Ways, shared: SharedNamespaces) -> None:
        self._ways = ways
        self._shared = shared
        self._verdicts: Verdicts | None = None
        self._absorb: Callable[[], None] = lambda: None

    def explained_by(self, verdicts: Verdicts, absorb: Callable[[], None]) -> None:
        """From now on the others are told how blocks left; `absorb` brings the log of departures up to date."""
        self._verdicts, self._absorb = verdicts, absorb

    async def tell(self, peer: PeerInfo, payload: bytes) -> bytes:
        """Answers `where`."""
        question = decoded(payload, Where)
        if len(question.keys) > KEYS_MAX:
            raise BadRequest(f"{len(question.keys)} keys in one question; {KEYS_MAX} are allowed")
        namespace, verdicts = self._shared.find(question.ns_id), self._verdicts
        if namespace is None or verdicts is None:
            return msgspec.msgpack.encode(There([Told()] * len(question.keys)))
        self._absorb()
        told: list[Told] = []
        for first in range(0, len(question.keys), SLICE):
            told += [_told(verdicts.of(namespace, key)) for key in question.keys[first : first + SLICE]]
            await asyncio.sleep(0)
        return msgspec.msgpack.encode(There(told))

    async def ask(self, namespace: Namespace, keys: Sequence[bytes], deadline: float) -> list[FromNode]:
        """By name. Raises nothing but cancellation: who fails or is late has not answered."""
        ns_id = self._shared.id_of(namespace)
        if not ns_id or not keys:
            return []
        nodes = await self._nodes(ns_id, keys, deadline)
        answers = await asyncio.gather(*(self._ask_one(node, ns_id, keys, deadline) for node in nodes))
        return [FromNode(node.name, told) for node, told in zip(nodes, answers, strict=True)]

    async def one_in_words(self, namespace: Namespace, key: bytes) -> str:
        """As `in_words`, within WORDS_SECONDS."""
        return in_words(await self.ask(namespace, [key], time.monotonic() + WORDS_SECONDS), time.time())

    async def _nodes(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[NodeRecord]:
        directory = self._ways.directory
        soon = min(deadline, time.monotonic() + LOCATE_SECONDS)
        located, known = await asyncio.gather(directory.lookup(ns_id, keys[:KEYS_MAX], soon), directory.nodes(soon))
        holders = {holder for some in located for holder in some}
        found = {node.incarnation: node for holder in holders if (node := directory.node(holder)) is not None}
        for node in known:
            found.setdefault(node.incarnation, node)
        return sorted(list(found.values())[:NODES_MAX], key=lambda node: node.name)

    async def _ask_one(
        self, node: NodeRecord, ns_id: bytes, keys: Sequence[bytes], deadline: float
    ) -> list[Told] | None:
        told: list[Told] = []
        try:
            link = await self._ways.pool.link(node.address, deadline, node.incarnation)
            for first in range(0, len(keys), KEYS_MAX):
                some = list(keys[first : first + KEYS_MAX])
                payload = msgspec.msgpack.encode(Where(ns_id, some))
                found = decoded(await link.ask(WHERE, payload, deadline), There).blocks
                if len(found) != len(some):
                    return None
                told += found
        except MooncaskError:
            return None
        return told


def _told(verdict: Verdict) -> Told:
    age = time.time() - verdict.time_seconds if verdict.time_seconds else -1.0
    return Told(list(verdict.tiers), verdict.verdict, age, verdict.tier, verdict.policy)


# --- one block in words ----------------------------------------------------------------------------------------------

_LEFT = {
    "evicted": "evicted there by {policy}",
    "expired": "when its time to live ended there",
    "deleted": "deleted there",
    "quarantined": "found wrong there and quarantined",
    "replaced": "replaced there by a newer version",
    "lost_dirty": "lost there, since it could not be written to nvme",
    "withdrawn": "taken back there for want of room on nvme",
}


def in_words(found: Sequence[FromNode], now_seconds: float) -> str:
    """Of one block: "n1 has it in dram, and gives it ...", or "no other node has it; held by n2 until 12:04:11, evicted there by
    lru". Empty where there are no other nodes."""
    told = [(node.name, node.told[0]) for node in found if node.told]
    have = [f"{name} has it in {' and '.join(one.tiers)}" for name, one in told if one.tiers]
    parts = [f"{', '.join(have)}, and gives it to whoever acquires it" if have else "no other node has it"]
    parts += [f"{name} is writing it" for name, one in told if one.verdict == "being_written"]
    left = sorted((one.age_seconds, name, one) for name, one in told if one.verdict in _LEFT and one.age_seconds >= 0)
    for age, name, one in left[:GONE_TOLD_MAX] if not have else ():
        parts.append(
            f"held by {name} until {clock_text(now_seconds - age, now_seconds)}, "
            + _LEFT[one.verdict].format(policy=one.policy or "its policy")
        )
    silent = [node.name for node in found if node.told is None]
    if silent:
        parts.append(f"{', '.join(silent)} did not answer in time")
    if silent and not have:
        parts[0] = "no other node that answered has it"
    return "; ".join(parts) if found else ""
