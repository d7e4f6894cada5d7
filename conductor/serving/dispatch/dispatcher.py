"""Runs jobs: place, prefill, decode, and again elsewhere when a worker fails.

Decode gets the request as soon as the prefill has begun, and loads KV while the rest is computed. Before the first token a
failed request is done again from what is cached; behind it the answer is continued with the tokens that were passed on, so
none is told twice: workers draw by (seed, position), so the continuation is the one that the first would have made.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from functools import partial

from mooncask.client.worker_api import DecodeCall, DecodeDone, PrefillDone, Tokens, WorkerKind
from mooncask.conductor.scheduling.decision import Policies
from mooncask.conductor.serving.dispatch.books import Books, DecodeEntry
from mooncask.conductor.serving.dispatch.building import Builder
from mooncask.conductor.serving.dispatch.calls import decode_call, prefill_call
from mooncask.conductor.serving.dispatch.costs import PoolCosts
from mooncask.conductor.serving.dispatch.ending import Ending
from mooncask.conductor.serving.dispatch.history import Decision, History
from mooncask.conductor.serving.dispatch.hot_prefixes import HotPrefixes, Place
from mooncask.conductor.serving.dispatch.learning import Learning
from mooncask.conductor.serving.dispatch.node_tokens import NodeTokens
from mooncask.conductor.serving.dispatch.pausing import Pausing
from mooncask.conductor.serving.dispatch.placing import Placement, Placer, Prompt
from mooncask.conductor.serving.dispatch.policy_table import PolicyTable
from mooncask.conductor.serving.dispatch.pools import Pools, Worker
from mooncask.conductor.serving.dispatch.prefilling import Prefilling
from mooncask.conductor.serving.dispatch.prefixes import Held, Prefixes
from mooncask.conductor.serving.dispatch.run import Run
from mooncask.conductor.serving.dispatch.slot_queue import SlotQueue
from mooncask.conductor.serving.dispatch.worker_client import Bounced, KvLost, WorkerClient
from mooncask.conductor.serving.job import Begun, Ended, Event, Job, Piece
from mooncask.errors import (
    AnswerBroken,
    ContextTooLong,
    DeadlineExceeded,
    MooncaskError,
    NoWorkers,
    Overloaded,
    WorkerUnavailable,
)

log = logging.getLogger(__name__)

BEGUN_PRIORITY = 256
"""Whose answer has begun goes before all that have not."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`running_max` requests at a time, of which `waiting_max` may wait for a place to decode."""

    running_max: int = 1024
    waiting_max: int = 64
    inline_tokens: int = 64
    """Missing tokens that decode computes without a prefill."""
    inline_prefill_tokens: int = 512
    """Missing tokens that decode computes when a prefill has failed to bring them."""
    hot_copies_max: int = 2
    """Copies of hot prefixes that may be under way; 0: none are made."""
    hot_busy_share: float = 0.3
    """A prefix is copied when reads of it would keep a link busy for more of the time than this."""
    pauses_seconds: tuple[float, ...] = (0.0, 0.1, 0.4, 1.0)
    """One for each attempt, before it: who failed may be shunned, or have come back, by then."""


class LiveDispatcher:
    """`job.Dispatcher` over registered workers. Everything belongs to one event loop."""

    def __init__(
        self, pools: Pools, client: WorkerClient, prefixes: Prefixes, table: PolicyTable, limits: Limits
    ) -> None:
        self.pools, self.books, self.history, self.limits = pools, Books(), History(), limits
        self._learning = Learning(pools, self.books, self.history, table.settings.fetch_bytes_per_second)
        self.costs = self._learning.costs
        """By model, as learned so far."""
        self._client, self._prefixes, self._table = client, prefixes, table
        self._placer = Placer(pools, self.books, limits.inline_tokens, table.settings.nodes_share)
        self._queue: SlotQueue[Worker] = SlotQueue(limits.waiting_max)
        self.hot = HotPrefixes(prefixes, limits.hot_copies_max, limits.hot_busy_share)
        self.pausing = Pausing(pools, self.books, table.settings.pause, client.pause)
        self._running = 0
        pools.on_report, pools.on_gone = self._reported, self._gone

    @property
    def running(self) -> int:
        return self._running

    @property
    def waiting(self) -> int:
        """Requests that wait for a place to decode."""
        return len(self._queue)

    @property
    def unanswered(self) -> int:
        """Questions to nodes for a prefix that were not answered in time."""
        return self._prefixes.unanswered

    @property
    def node_tokens(self) -> NodeTokens:
        """What nodes' daemons are shown."""
        return self._prefixes.tokens

    def builder(self) -> Builder:
        """What brings a cache's blocks onto a node."""
        return Builder(self.pools, self.books, self._prefixes, self._client)

    def models(self) -> list[str]:
        return self.pools.models(time.monotonic())

    def positions_max(self, model: str) -> int:
        return self.pools.positions_max(model)

    async def run(self, job: Job) -> AsyncGenerator[Event]:
        """As `job.Dispatcher.run`."""
        limit = self.pools.positions_max(job.model)
        if len(job.tokens) + job.max_tokens > limit:
            raise ContextTooLong(len(job.tokens), job.max_tokens, limit)
        started, how = time.monotonic(), "cancelled"
        hashing = self.pools.any_of(job.model).hashing
        run = Run(job, self._decision(job), hashing, started + job.deadline_seconds)
        self.history.add(run.decision)
        if self._running >= self.limits.running_max:
            full = Overloaded(f"{self.limits.running_max} requests are being served", 1.0)
            self.history.rejected(run.decision, full.reason, full.retry_after_seconds)
            raise full
        self._running += 1
        try:
            async with contextlib.aclosing(self._attempts(run)) as events:
                async for event in events:
                    if isinstance(event, Ended):
                        how = event.reason
                    yield event
        except Overloaded as exc:
            how = "failed"
            if run.begun:
                raise AnswerBroken(job.id, exc.message) from exc
            self.history.rejected(run.decision, exc.reason, exc.retry_after_seconds)
            raise
        except Exception as exc:
            how = "failed"
            if isinstance(exc, MooncaskError) and exc.message not in run.decision.failures:
                run.decision.failures.append(exc.message)
            if run.begun and isinstance(exc, MooncaskError) and not isinstance(exc, AnswerBroken):
                raise AnswerBroken(job.id, exc.message) from exc
            raise
        finally:
            self._running -= 1
            self.history.ended(run.decision, how, time.monotonic() - started)

    # --- attempts ---

    async def _attempts(self, run: Run) -> AsyncGenerator[Event]:
        last: MooncaskError = NoWorkers("no attempt was made")
        for attempt, pause in enumerate(self.limits.pauses_seconds, 1):
            run.decision.attempts = attempt
            await asyncio.sleep(pause)
            try:
                async with contextlib.aclosing(self._attempt(run, admit=attempt == 1)) as events:
                    async for event in events:
                        yield event
                return
            except (Bounced, KvLost, WorkerUnavailable, DeadlineExceeded, NoWorkers) as exc:
                if attempt == 1 and isinstance(exc, NoWorkers):
                    raise
                run.decision.failures.append(exc.message)
                log.info("request %s, attempt %d: %s", run.job.id, attempt, exc.message)
                last = exc
                run.compute_all |= isinstance(exc, KvLost) and run.prefilled
            finally:
                self.books.prefills.pop(run.job.id, None)
                self.books.decodes.pop(run.job.id, None)
                self.pausing.ended(run.job.id)
                self._queue.wake()
            if (end := run.end()) is not None:
                yield end
                return
            if run.committed and run.fixed:
                raise AnswerBroken(
                    run.job.id, f"{last.message}; what a seed has drawn so far can't be continued elsewhere"
                )
            if time.monotonic() >= run.until:
                raise DeadlineExceeded(f"request {run.job.id}", run.job.deadline_seconds)
        if run.begun:
            raise AnswerBroken(run.job.id, last.message)
        if isinstance(last, Bounced):
            raise Overloaded("every worker that was asked is full", 1.0)
        raise NoWorkers(f"{run.decision.attempts} attempts failed, the last one: {last.message}")

    async def _attempt(self, run: Run, admit: bool) -> AsyncGenerator[Event]:
        run.kv_lost, run.prefilled = Ending(), False
        prompt, keys = await self._look_up(run)
        costs, policies = self.costs_of(run.job.model), self._policies_of(run.job)
        placement = self._placer.place(prompt, policies, costs, run.decision, run.failed_workers, admit)
        self._note_read(run, prompt, keys, costs)
        if run.compute_all:
            self.books.prefills.pop(run.job.id, None)
            placement = replace(placement, prefill=None)
        prefill = self._prefilling(run, placement, keys)
        try:
            if prefill is not None:
                await prefill.begun()
                self.pausing.look(prefill.worker.registration.node.name)
            decode = await self._take_slot(run, prompt, placement)
            if admit:
                self._placer.recheck(prompt, policies, decode)
            call = decode_call(run, placement, keys, self.limits.inline_prefill_tokens)
            async with contextlib.aclosing(self._decode(run, decode, call, placement)) as events:
                async for event in events:
                    yield event
        finally:
            if prefill is not None:
                await prefill.end()

    def _note_read(self, run: Run, prompt: Prompt, keys: list[bytes], costs: PoolCosts) -> None:
        """What many read is copied to more nodes; this request does not wait for that."""
        if run.hashing is None or not keys:
            return
        queues: dict[str, float] = {}
        for one in run.decision.candidates:
            queues[one.node] = min(one.queue_seconds, queues.get(one.node, one.queue_seconds))
        nodes = {w.registration.node.name: w.registration.node for w in self.pools.all()}
        places = [
            Place(nodes[name], prompt.held[name].now, seconds)
            for name, seconds in queues.items()
            if name in prompt.held and name in nodes and nodes[name].pages
        ]
        self.hot.read(run.job.model, run.hashing, keys, places, costs.block_seconds)

    def _prefilling(self, run: Run, placement: Placement, keys: list[bytes]) -> Prefilling | None:
        """Begins it. Its blocks are expected on the worker's node from now on."""
        worker, job, lost = placement.prefill, run.job, run.kv_lost
        if worker is None:
            return None
        node, entry = worker.registration.node.name, self.books.prefills[job.id]
        self._prefixes.recent.placed(node, keys, time.monotonic())
        self.pausing.placed(job.id, worker, entry, self._late_at(job), run.decision)

        def done(line: PrefillDone) -> None:
            self.books.prefills.pop(job.id, None)
            run.prefilled = True
            self.pausing.done(job.id, line.seconds, line.computed_tokens)
            self._learning.prefilled(worker, line)

        def failed(error: Exception) -> None:
            self.books.prefills.pop(job.id, None)
            self._prefixes.recent.failed(node, keys)
            self.pausing.ended(job.id)
            self._worker_failed(run, worker, error)
            decode = self.books.decodes.get(job.id)
            if decode is not None and decode.started is None:
                lost.set()

        silent = worker.registration.kind is WorkerKind.VLLM
        seen = partial(self._prefixes.begun, worker, keys, run.left_seconds) if silent else None
        return Prefilling(self._client, worker, prefill_call(run), entry, done, failed, seen)

    async def _look_up(self, run: Run) -> tuple[Prompt, list[bytes]]:
        """Also what nodes hold of it now."""
        job = run.job
        keys = run.keys()
        nodes = {
            w.registration.node.name: w.registration.node for w in self.pools.all() if w.registration.model == job.model
        }
        held: dict[str, Held] = {}
        if run.hashing is not None and keys:
            held = await self._prefixes.held(list(nodes.values()), run.hashing, keys)
        block_tokens = run.hashing.block_tokens if run.hashing is not None else 1
        engines = self._prefixes.engines.prefixes(keys)
        rank = self._table.rank(job.service_class)
        return Prompt(job.id, job.model, len(run.tokens), rank, block_tokens, held, engines), keys

    async def _take_slot(self, run: Run, prompt: Prompt, placement: Placement) -> Worker:
        eta = time.monotonic() + placement.ttft_seconds

        def find() -> Worker | None:
            return self._placer.take_slot(prompt, placement.decode, eta, run.failed_workers)

        seconds = min(run.left_seconds, self._table.slo(run.job.service_class).ttft_seconds)
        priority = BEGUN_PRIORITY if run.begun else run.job.priority
        worker = await self._queue.take(find, priority, seconds)
        run.decision.decode_worker = worker.name
        return worker

    async def _decode(self, run: Run, worker: Worker, call: DecodeCall, placement: Placement) -> AsyncGenerator[Event]:
        entry = self.books.decodes[run.job.id]
        entry.tbt_seconds = self._table.slo(run.job.service_class).tbt_seconds
        run.fixed = not worker.can_be_continued(call.sampling)
        try:
            async with self._client.stream(worker, call, run.kv_lost) as lines:
                async for line in lines:
                    if isinstance(line, Tokens):
                        self._token(run, entry)
                        run.committed += line.tokens
                        entry.output_tokens += len(line.tokens)
                        yield Piece(line.tokens, line.logprobs)
                    elif isinstance(line, DecodeDone):
                        self._learning.decoded(worker, call, line)
                        yield self._done(run, entry, line)
                    elif not run.begun:
                        run.begun = True
                        yield Begun(
                            placement.prefill.name if placement.prefill else "", worker.name, placement.matched_tokens
                        )
        except Bounced:
            worker.full = True  # until it says otherwise, which it soon does
            raise
        except WorkerUnavailable as exc:
            self._worker_failed(run, worker, exc)
            raise

    def _token(self, run: Run, entry: DecodeEntry) -> None:
        if entry.started is None:
            entry.started = time.monotonic()
            if not run.committed:
                self.history.first_token(run.decision, entry.started - run.job.received_seconds)

    def _done(self, run: Run, entry: DecodeEntry, line: DecodeDone) -> Ended:
        self.books.answered(entry, time.monotonic())
        run.decision.cached_tokens, run.decision.output_tokens = line.cached_tokens, len(run.committed)
        cached = min(line.cached_tokens, run.decision.matched_tokens)
        return Ended(line.reason, len(run.committed), cached, line.faults)

    def _worker_failed(self, run: Run, worker: Worker, error: Exception) -> None:
        run.failed_workers.add(worker.name)
        if isinstance(error, WorkerUnavailable):
            self.pools.failed(worker, time.monotonic())

    # --- what is known ---

    def _decision(self, job: Job) -> Decision:
        return Decision(
            id=job.id,
            at=time.time(),
            model=job.model,
            tenant=job.tenant,
            service_class=job.service_class,
            prompt_tokens=len(job.tokens),
            max_tokens=job.max_tokens,
        )

    def costs_of(self, model: str) -> PoolCosts:
        """What the model costs here, as learned so far. Raises NoSuchModel."""
        return self._learning.costs_of(model)

    def _late_at(self, job: Job) -> float:
        """When its prefill has to be done, so that decode can tell the first token in time."""
        tail = self.costs_of(job.model).tail_seconds(len(job.tokens), len(job.tokens))
        return job.received_seconds + self._table.slo(job.service_class).ttft_seconds - tail

    def _policies_of(self, job: Job) -> Policies:
        return self._table.policies(job.service_class, self.costs_of(job.model).decode)

    def _reported(self, worker: Worker) -> None:
        """Steps teach the model; slots may have become free."""
        self._learning.reported(worker)
        self.pausing.look(worker.registration.node.name)
        self._queue.wake()

    def _gone(self, worker: Worker) -> None:
        """Nothing is kept by the name of a worker or a node that is not there."""
        self._learning.gone(worker)
        pages = worker.registration.node.pages
        if all(other.registration.node.pages != pages for other in self.pools.all()):
            self._prefixes.forget(pages)
