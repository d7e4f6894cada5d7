"""Why a prompt missed: its chain walked, the first block that is not here explained, and where else its tokens are."""

import asyncio
from collections.abc import Callable, Iterator, Sequence

import msgspec

from mooncask.client import control
from mooncask.daemon.insight.blocks import key_text
from mooncask.daemon.insight.gone import Gone
from mooncask.daemon.insight.prompts import AskedChain, asked_chain, hash_of, usable_blocks
from mooncask.daemon.insight.recomputed import Recomputations, recomputed_text
from mooncask.daemon.insight.verdicts import Verdict, Verdicts
from mooncask.daemon.namespace_door import block_tokens
from mooncask.tiers.namespace import Namespace, differences

CHAIN_MAX = 4096
"""Blocks that are told one by one."""
OTHERS_MAX = 64
"""Other namespaces that are looked into, those with the most blocks first."""
ELSEWHERE_MAX = 8
SLICE = 512


class Why:
    """Answers one question at a time, in slices of the loop's time."""

    def __init__(self, verdicts: Verdicts, gone: Gone, recomputed: Recomputations, absorb: Callable[[], None]) -> None:
        """`absorb` brings the log of departures up to date."""
        self._verdicts = verdicts
        self._gone = gone
        self._recomputed = recomputed
        self._absorb = absorb

    async def explain(
        self, namespace: Namespace, request: control.WhyRequest, mine: Sequence[Namespace]
    ) -> control.Why:
        """`mine` are the namespaces of the caller. Raises BadRequest."""
        asked = await asked_chain(namespace, request)
        self._absorb()
        hits = next((i for i, key in enumerate(asked.keys) if key not in namespace.index), len(asked.keys))
        chain = await self._told(namespace, asked.keys[:CHAIN_MAX])
        first = self._first_miss(namespace, asked, chain, hits)
        if first is not None:
            hits = first.index
            first = await self._with_peers(namespace, first)
        elsewhere = await self._elsewhere(namespace, request, mine, hits) if first is not None else []
        return control.Why(
            namespace=namespace.spec.name,
            blocks=len(asked.keys),
            block_tokens=asked.block_tokens,
            hit_blocks=hits,
            hit_tokens=hits * asked.block_tokens,
            tail_tokens=asked.tail_tokens,
            first_miss=first,
            later_hits=sum(key in namespace.index for key in asked.keys[hits + 1 :]),
            chain=chain,
            elsewhere=elsewhere,
            recomputed=self._recomputed_part(namespace, asked.keys[:CHAIN_MAX]),
            log_since_seconds=self._gone.exact_since_seconds,
            advice=_advice(namespace, first, elsewhere, asked),
        )

    async def _with_peers(self, namespace: Namespace, first: control.WhyBlock) -> control.WhyBlock:
        """The first miss, with what other nodes have of it, or how they lost it."""
        told = await self._verdicts.elsewhere(namespace, first.key)
        return msgspec.structs.replace(first, text=f"{first.text}; {told}") if told else first

    def _recomputed_part(self, namespace: Namespace, keys: Sequence[bytes]) -> str:
        """The first part of the chain of which an engine said that it would rather compute it."""
        for index, key in enumerate(keys):
            told = self._recomputed.of(namespace.id, key)
            if told is not None:
                return recomputed_text(index, told)
        return ""

    async def _told(self, namespace: Namespace, keys: Sequence[bytes]) -> list[control.WhyBlock]:
        told: list[control.WhyBlock] = []
        for first in range(0, len(keys), SLICE):
            told += [self._block(namespace, i, keys[i]) for i in range(first, min(first + SLICE, len(keys)))]
            await asyncio.sleep(0)
        return told

    def _first_miss(
        self, namespace: Namespace, asked: AskedChain, chain: Sequence[control.WhyBlock], hits: int
    ) -> control.WhyBlock | None:
        """By what was told, so that the answer agrees with itself; behind that, by the catalogue."""
        told = next((block for block in chain if block.verdict != "hit"), None)
        if told is not None or hits < CHAIN_MAX:
            return told
        return self._block(namespace, hits, asked.keys[hits]) if hits < len(asked.keys) else None

    def _block(self, namespace: Namespace, index: int, key: bytes) -> control.WhyBlock:
        return why_block(namespace, index, key, self._verdicts.of(namespace, key))

    async def _elsewhere(
        self, namespace: Namespace, request: control.WhyRequest, mine: Sequence[Namespace], hits: int
    ) -> list[control.Elsewhere]:
        found = [*await self._unsalted(namespace, request, hits)]
        others = [other for other in mine if other is not namespace and other.spec.kind == "kv" and other.blocks]
        here_tokens = hits * block_tokens(namespace.spec.family)
        for other in sorted(others, key=lambda other: -other.blocks)[:OTHERS_MAX]:
            blocks = await _blocks_there(other, request)
            longer = blocks * block_tokens(other.spec.family) > here_tokens if request.tokens else blocks > hits
            if longer:
                differs = list(_told_differences(namespace, other))
                found.append(control.Elsewhere(namespace=other.spec.name, blocks=blocks, differs=differs))
        return sorted(found, key=lambda one: -one.blocks)[:ELSEWHERE_MAX]

    async def _unsalted(self, namespace: Namespace, request: control.WhyRequest, hits: int) -> list[control.Elsewhere]:
        """The same tokens without the request's salt. Another salt can't be guessed, and must not be."""
        if not request.tokens or not request.cache_salt:
            return []
        blocks = await usable_blocks(namespace, request.tokens, "")
        differs = ["cache_salt: given here, none there"]
        return [control.Elsewhere(namespace=namespace.spec.name, blocks=blocks, differs=differs)] * (blocks > hits)


async def _blocks_there(other: Namespace, request: control.WhyRequest) -> int:
    if request.tokens:
        return await usable_blocks(other, request.tokens, request.cache_salt)
    try:
        keys = [bytes.fromhex(key) for key in request.keys]
    except ValueError:
        return 0
    return next((i for i, key in enumerate(keys) if key not in other.index), len(keys))


def why_block(namespace: Namespace, index: int, key: bytes, verdict: Verdict) -> control.WhyBlock:
    return control.WhyBlock(
        index=index,
        key=key_text(namespace, key),
        verdict=verdict.verdict,
        text=verdict.text,
        tiers=list(verdict.tiers),
        time_seconds=verdict.time_seconds,
        tier=verdict.tier,
        policy=verdict.policy,
    )


def _told_differences(here: Namespace, there: Namespace) -> Iterator[str]:
    for field, ours, theirs in differences(here.spec, there.spec):
        if field != "fingerprint":
            yield f'{field}: "{ours}" here, "{theirs}" there'
    if hash_of(here) != hash_of(there):
        yield f'hash: "{hash_of(here)}" here, "{hash_of(there)}" there'


ADVICE = {
    "evicted": "give the tier more room ({tier}.capacity), pin what must stay, or see what_if of the overview",
    "expired": 'give such blocks a longer time to live: "mooncask ttl"',
    "deleted": "somebody deleted it; the next prompt that begins so stores it again",
    "quarantined": 'check the others with "mooncask verify {namespace}", and the memory or disk that they are in',
    "replaced": "the newer version left; put it again",
    "lost_dirty": 'see "mooncask doctor" and the log: the disk was degraded or full of what may not leave',
    "withdrawn": "make room on nvme: delete objects, or raise nvme.capacity",
    "being_written": "ask again in a moment, or acquire with wait",
    "expected": "acquire with wait, and it is handed over as soon as it is written",
    "forgotten": "raise insight.departures_max to remember more departures",
    "never_stored": "nothing has put it under this namespace; check that the writer's family, salt and block_tokens are these",
}


def _advice(
    namespace: Namespace,
    first: control.WhyBlock | None,
    elsewhere: Sequence[control.Elsewhere],
    asked: AskedChain,
) -> str:
    if first is None:
        return ""
    if elsewhere and first.verdict in ("never_stored", "forgotten"):
        best = elsewhere[0]
        differs = "; ".join(best.differs) or "nothing but its name"
        return (
            f"namespace {best.namespace} has {best.blocks} blocks of it, and differs in {differs}: make the two equal"
        )
    return ADVICE[first.verdict].format(tier=first.tier or "dram", namespace=namespace.spec.name)
