"""Builds what a cache stands for: a prefill without an answer, behind all requests that somebody waits for.

Not here: holding the blocks (`caching/`), placing requests (`placing.py`).
"""

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass

from mooncask.client.hashing import root
from mooncask.client.prompt_keys import prompt_keys
from mooncask.client.worker_api import Hashing, Node, PrefillCall, Role
from mooncask.conductor.serving.dispatch.books import Books, PrefillEntry
from mooncask.conductor.serving.dispatch.pools import Pools, Worker
from mooncask.conductor.serving.dispatch.prefixes import Held, Prefixes
from mooncask.conductor.serving.dispatch.worker_client import Bounced, WorkerClient
from mooncask.conductor.serving.job import Job
from mooncask.errors import NoWorkers, WorkerUnavailable

log = logging.getLogger(__name__)

PACE_UNMEASURED = 1000.0
"""Tokens a second of a worker that has not said what it can."""


@dataclass(frozen=True, slots=True)
class Built:
    """The blocks are on this node, as far as it could be seen: it may have evicted some since."""

    node: Node
    namespace: str
    keys: list[bytes]
    computed: bool
    """False: all of it was there."""


class Builder:
    """Of one Conductor, over what its dispatcher knows."""

    def __init__(self, pools: Pools, books: Books, prefixes: Prefixes, client: WorkerClient) -> None:
        self._pools, self._books, self._prefixes, self._client = pools, books, prefixes, client

    async def build(self, job: Job, without: Collection[str] = ()) -> Built:
        """Brings the full blocks of the job's tokens onto one node, none of those `without`. Its answer is not made.

        Raises NoWorkers when nobody can, WorkerUnavailable and Bounced when the one who was asked has not.
        """
        hashing = self._pools.any_of(job.model).hashing
        if hashing is None:
            raise NoWorkers(f"no worker of model {job.model} has a store")
        keys = keys_of(hashing, job)
        able = self._pools.able(job.model, Role.PREFILL, time.monotonic())
        usable = [
            worker for worker in able if worker.registration.node.pages and worker.registration.node.name not in without
        ]
        if not usable:
            raise NoWorkers(f"no prefill worker of model {job.model} has a daemon that says where its pages are")
        nodes = {worker.registration.node.name: worker.registration.node for worker in usable}
        held = await self._prefixes.held(list(nodes.values()), hashing, keys)
        best = max(usable, key=lambda worker: self._rank(worker, held))
        node = best.registration.node
        if held[node.name].now == len(keys):
            return Built(node, hashing.namespace, keys, computed=False)
        await self._prefill(best, job, held[node.name].now * hashing.block_tokens)
        return Built(node, hashing.namespace, keys, computed=True)

    def _rank(self, worker: Worker, held: dict[str, Held]) -> tuple[int, int]:
        """Who has most of it already, then who has least to do."""
        return held[worker.registration.node.name].now, -worker.report.queued_tokens

    async def _prefill(self, worker: Worker, job: Job, cached_tokens: int) -> None:
        missing = len(job.tokens) - cached_tokens
        pace = worker.registration.prefill_tokens_per_second or PACE_UNMEASURED
        self._books.prefills[job.id] = PrefillEntry(worker.name, missing, missing / pace)
        call = PrefillCall(
            id=job.id,
            tokens=job.tokens,
            cache_salt=job.cache_salt,
            public_tokens=job.public_tokens,
            priority=job.priority,
            deadline_seconds=job.deadline_seconds,
        )
        try:
            async with self._client.stream(worker, call) as lines:
                async for _line in lines:
                    pass
        except WorkerUnavailable:
            self._pools.failed(worker, time.monotonic())
            raise
        except Bounced:
            log.info("worker %s has no place for cache %s", worker.name, job.id)
            raise
        finally:
            self._books.prefills.pop(job.id, None)


def keys_of(hashing: Hashing, job: Job) -> list[bytes]:
    """Of the full blocks of the job's tokens."""
    fingerprint, salt = bytes.fromhex(hashing.fingerprint), bytes.fromhex(hashing.tenant_salt)
    return prompt_keys(
        lambda extra: root(fingerprint, salt + extra, hashing.hash),
        job.tokens,
        hashing.block_tokens,
        job.cache_salt,
        job.public_tokens,
        hashing.hash,
    )
