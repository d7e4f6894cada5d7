"""How much of a prompt each node holds: asked of the nodes' daemons in one wave, and remembered of what was placed lately.

A daemon that does not answer in time holds nothing, as far as this request is concerned. Not here: what is made of it.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from mooncask.client import control
from mooncask.client.coming import ComingAnswer, ComingRequest, ComingState
from mooncask.client.worker_api import Hashing, Node
from mooncask.conductor.serving.dispatch.engine_events import EngineEvents
from mooncask.conductor.serving.dispatch.node_tokens import REFUSED, NodeTokens, refusal
from mooncask.conductor.serving.dispatch.page_client import PageClient, PageUnreadable
from mooncask.conductor.serving.dispatch.pools import Worker
from mooncask.errors import PeerUnavailable

log = logging.getLogger(__name__)

RECENT_MAX = 100_000
"""Blocks of prompts that were placed on a node lately and are being stored."""
RECENT_ALL_MAX = 1_000_000
"""Of all nodes together, about: each has its share of it when it is given something, some 150 bytes a block."""
NODES_MAX = 4096
LOOKS_MAX = 16
"""Prefills of one node that are looked for at a time, in the order in which they were sent: a server begins them in that order, and a
daemon has better to do than to hold many questions."""
LOOK_SECONDS = 30.0
"""One question whether a prefill has begun waits for so long."""
RECENT_SECONDS = 60.0


@dataclass(slots=True)
class Recent:
    """Keys that will be on a node soon: the prompts that were placed there. Bounded: of a node that was given more, those that were
    placed first go, and of more nodes than that the one that was given something first."""

    _until: dict[str, dict[bytes, float]] = field(default_factory=dict)
    """By node, in the order in which keys were placed there first."""

    def placed(self, node: str, keys: Sequence[bytes], now: float) -> None:
        until = self._until.setdefault(node, {})
        until |= dict.fromkeys(keys, now + RECENT_SECONDS)
        most = min(RECENT_MAX, RECENT_ALL_MAX // len(self._until))
        if len(until) > most:
            self._until[node] = dict(itertools.islice(until.items(), len(until) - most // 2, None))
        if len(self._until) > NODES_MAX:
            del self._until[next(iter(self._until))]

    def failed(self, node: str, keys: Iterable[bytes]) -> None:
        """They will not be there after all."""
        until = self._until.get(node, {})
        for key in keys:
            until.pop(key, None)

    def prefix(self, node: str, keys: Sequence[bytes], begin: int, now: float) -> int:
        """How far the prefix goes on from block `begin`: the number of its blocks in all."""
        until, blocks = self._until.get(node), begin
        while until and blocks < len(keys) and until.get(keys[blocks], 0.0) > now:
            blocks += 1
        return blocks


@dataclass(frozen=True, slots=True)
class Held:
    """Of one node, in blocks: what it holds itself now, and what it will hold when what was placed there is done."""

    now: int
    soon: int


class _Matched(msgspec.Struct):
    """Of a control.Matched, all that is looked at."""

    tiers: list[str]


class Prefixes:
    """Asks daemons' pages. `seconds` is what one wave may take."""

    def __init__(self, seconds: float, tokens: NodeTokens | None = None) -> None:
        self._seconds, self.tokens = seconds, tokens or NodeTokens()
        self._clients: dict[str, PageClient] = {}
        self._looks: dict[str, asyncio.Semaphore] = {}
        """By pages: questions that wait there, until a prefill has begun."""
        self._refusing: set[str] = set()
        """Pages that want another token, of which it was said."""
        self.recent = Recent()
        self.engines = EngineEvents()
        self.unanswered = 0

    async def held(self, nodes: Sequence[Node], hashing: Hashing, keys: Sequence[bytes]) -> dict[str, Held]:
        """By node name. Raises nothing: who can't be asked holds nothing."""
        asked = [node for node in nodes if node.pages]
        body = msgspec.json.encode(control.WhyRequest(namespace=hashing.namespace, keys=[key.hex() for key in keys]))
        answers = await self._answers(asked, body) if keys else [0] * len(asked)
        now = time.monotonic()
        found = dict.fromkeys((node.name for node in nodes), Held(0, 0))
        for node, blocks in zip(asked, answers, strict=True):
            found[node.name] = Held(blocks, self.recent.prefix(node.name, keys, blocks, now))
        return found

    async def begun(self, worker: Worker, keys: Sequence[bytes], seconds: float) -> bool:
        """Whether a prefill of these keys that was sent to this worker has begun, as soon as its node's daemon has seen its last
        block announced; False when nothing is to be seen."""
        told, until = worker.registration, time.monotonic() + seconds
        if told.hashing is None or not told.node.pages or not keys:
            return False
        async with self._looks.setdefault(told.node.pages, asyncio.Semaphore(LOOKS_MAX)):
            return await self._announced(told.node, told.hashing.namespace, keys[-1].hex(), until)

    async def _announced(self, node: Node, namespace: str, key: str, until: float) -> bool:
        while (left := until - time.monotonic()) > 0:
            asked = ComingRequest(namespace=namespace, key=key, seconds=min(left, LOOK_SECONDS))
            try:
                answer = await self._client(node).post("/-/v1/coming", msgspec.json.encode(asked))
                if answer.status != 200:
                    raise PageUnreadable(f"status {answer.status}")
                if msgspec.json.decode(answer.body, type=ComingAnswer).state is not ComingState.NOBODY:
                    return True
            except (OSError, EOFError, PageUnreadable, msgspec.DecodeError) as exc:
                log.debug("node %s did not say whether a prefill has begun: %s", node.name, exc)
                return False
        return False

    async def replicate(
        self, source: Node, target: str, hashing: Hashing, keys: Sequence[bytes], seconds: float
    ) -> control.Replicated:
        """Has the source's daemon copy blocks to another node. Raises PeerUnavailable."""
        asked = control.ReplicateRequest(
            namespace=hashing.namespace, to=target, keys=[key.hex() for key in keys], deadline_seconds=seconds
        )
        try:
            async with asyncio.timeout(seconds + 1):
                answer = await self._client(source).post("/-/v1/replicate", msgspec.json.encode(asked))
            if answer.status != 200:
                raise PageUnreadable(f"status {answer.status}: {answer.body[:200].decode(errors='replace')}")
            return msgspec.json.decode(answer.body, type=control.Replicated)
        except (OSError, EOFError, PageUnreadable, msgspec.DecodeError) as exc:
            raise PeerUnavailable(source.name, f"it does not copy: {exc!r}") from exc

    def forget(self, pages: str) -> None:
        """Nobody is at that node any more."""
        self._refusing.discard(pages)
        self._looks.pop(pages, None)
        client = self._clients.pop(pages, None)
        if client is not None:
            client.close()

    async def close(self) -> None:
        for client in self._clients.values():
            client.close()

    async def _answers(self, nodes: Sequence[Node], body: bytes) -> list[int]:
        """All at once; who has not answered when the time is over is not waited for any more."""
        tasks = [asyncio.create_task(self._ask(node, body)) for node in nodes]
        try:
            late = (await asyncio.wait(tasks, timeout=self._seconds))[1] if tasks else ()
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
        for task in late:
            task.cancel()
        self.unanswered += len(late)
        return [0 if task in late else task.result() for task in tasks]

    async def _ask(self, node: Node, body: bytes) -> int:
        try:
            answer = await self._client(node).post("/-/v1/match", body)
            if answer.status == 404:  # the namespace is not there yet
                return 0
            if answer.status in REFUSED and node.pages not in self._refusing:
                self._refusing.add(node.pages)
                log.warning("%s", refusal(node.name, answer.body))
            if answer.status != 200:
                raise PageUnreadable(f"status {answer.status}")
            return local_blocks(msgspec.json.decode(answer.body, type=_Matched).tiers)
        except (OSError, EOFError, PageUnreadable, msgspec.DecodeError) as exc:
            self.unanswered += 1
            log.debug("node %s did not say what it holds: %s", node.name, exc)
            return 0

    def _client(self, node: Node) -> PageClient:
        """One a page address, kept."""
        client = self._clients.get(node.pages)
        if client is None:
            client = self._clients[node.pages] = PageClient(node.pages, self.tokens.headers(node.name, node.pages))
        return client


def local_blocks(tiers: Sequence[str]) -> int:
    """Blocks of the prefix before the first that only another node has."""
    return next((i for i, tier in enumerate(tiers) if tier not in ("hbm", "dram", "nvme")), len(tiers))
