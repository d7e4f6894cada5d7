"""Prefills one after the other, the most important first, in a thread of their own. Not here: HTTP."""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from mooncask.client.worker_api import (
    Admitted,
    Failure,
    FailureKind,
    PrefillCall,
    PrefillDone,
    Started,
)
from mooncask.engine_adapter.handover_hold import HandOverHold
from mooncask.engine_adapter.transformers.prefill import Prefilling
from mooncask.engine_adapter.transformers.server.answer import Tell
from mooncask.engine_adapter.transformers.server.answer_store import loaded
from mooncask.engine_adapter.transformers.store_link import StoreSession
from mooncask.errors import Busy, ContextTooLong, MooncaskError

log = logging.getLogger(__name__)

WAITING_MAX = 256
"""Calls that may wait here; more are refused as busy."""
EXPECT_SECONDS = 60.0
"""How long readers may wait for blocks that a running prefill has announced, before its first word."""


@dataclass(order=True, slots=True)
class _Waiting:
    """`order`: the higher priority first, then who came first."""

    order: tuple[int, int]
    call: PrefillCall = field(compare=False)
    tell: Tell = field(compare=False)
    since: float = field(compare=False)
    left_tokens: int = field(compare=False)
    """Still to be computed."""
    cancelled: bool = field(compare=False, default=False)


@dataclass(frozen=True, slots=True)
class PrefillLoad:
    waiting: int
    running: int
    queued_tokens: int
    requests: tuple[str, ...]


class PrefillEngine:
    """`submit`, `cancel`, `load` and `close` may be called from any thread; what prefills is used by this object's thread alone."""

    def __init__(self, engine: Prefilling, holds: HandOverHold) -> None:
        self._engine, self._holds = engine, holds
        self._changed = threading.Condition()
        self._heap: list[_Waiting] = []
        self._calls: dict[str, _Waiting] = {}
        self._running: _Waiting | None = None
        self._number = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="prefill")
        self._thread.start()

    @property
    def positions_max(self) -> int:
        return self._engine.model.positions_max

    def submit(self, call: PrefillCall, tell: Tell) -> Callable[[], None]:
        """Queues the prompt and says so; it ends with a PrefillDone or a Failure. Raises Busy, ContextTooLong.

        Returns what cancels this very prefill, and no later one of the same request.
        """
        if len(call.tokens) > self.positions_max:
            raise ContextTooLong(len(call.tokens), 0, self.positions_max)
        with self._changed:
            if len(self._calls) >= WAITING_MAX or self._closed or call.id in self._calls:
                raise Busy(f"a place among {WAITING_MAX} waiting prompts for request {call.id}")
            order = (-call.priority, next(self._number))
            waiting = _Waiting(order, call, tell, time.monotonic(), len(call.tokens))
            self._calls[call.id] = waiting
            before = len(self._calls) - 1
            heapq.heappush(self._heap, waiting)
            self._changed.notify()
        tell(Admitted(waiting=before))
        return lambda: self._cancel(waiting)

    def cancel(self, request: str) -> None:
        """That prefill ends before its next chunk. What it has stored stays. Unknown ids are ignored."""
        with self._changed:
            waiting = self._calls.get(request)
        if waiting is not None:
            self._cancel(waiting)

    def _cancel(self, waiting: _Waiting) -> None:
        """One that waits leaves at once."""
        with self._changed:
            waiting.cancelled = True
            if waiting not in self._heap:
                return
            self._heap.remove(waiting)
            heapq.heapify(self._heap)
            del self._calls[waiting.call.id]
        waiting.tell(Failure(kind=FailureKind.CANCELLED, message="cancelled"))

    def load(self) -> PrefillLoad:
        with self._changed:
            running = int(self._running is not None)
            tokens = sum(waiting.left_tokens for waiting in self._calls.values())
            return PrefillLoad(len(self._calls) - running, running, tokens, tuple(self._calls))

    def close(self) -> None:
        """Ends all as cancelled, and waits for the thread."""
        with self._changed:
            self._closed = True
            for waiting in self._calls.values():
                waiting.cancelled = True
            self._changed.notify()
        self._thread.join()

    # --- the thread ---

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._heap or self._closed)
                if not self._heap:
                    return
                self._running = heapq.heappop(self._heap)
            last = self._guarded(self._running)
            with self._changed:
                del self._calls[self._running.call.id]
                tell, self._running = self._running.tell, None
            tell(last)

    def _guarded(self, waiting: _Waiting) -> PrefillDone | Failure:
        """The top of one prefill: a fault ends it, and nothing else."""
        if waiting.cancelled:
            return Failure(kind=FailureKind.CANCELLED, message="cancelled")
        try:
            return self._prefill(waiting)
        except MooncaskError as exc:  # of the store or the model: what the caller asked for was checked before
            log.warning("prefill %s failed: %s", waiting.call.id, exc)
            return Failure(kind=FailureKind.INTERNAL, message=exc.message, error=type(exc).__name__)
        except Exception as exc:
            log.exception("prefill %s failed", waiting.call.id)
            text = f"{type(exc).__name__}: {exc}; the worker's log has more"
            return Failure(kind=FailureKind.INTERNAL, message=text)

    def _prefill(self, waiting: _Waiting) -> PrefillDone | Failure:
        call, engine, started = waiting.call, self._engine, time.monotonic()
        session = engine.link.session(priority=call.priority)
        keys = session.keys(call.tokens, call.cache_salt, call.public_tokens)
        hit = session.match(keys)
        session.expect(keys[len(hit) :], EXPECT_SECONDS)
        # Made before decode can have heard of it, since decode ends it; and to outlast the prefill, which renews it.
        self._hold(call, session, keys[: len(hit)], call.hold_seconds + call.deadline_seconds, renew=False)
        waiting.tell(Started(cached_tokens=len(hit) * engine.layout.block_tokens))
        waiting.left_tokens -= len(hit) * engine.layout.block_tokens
        job = engine.job(session, call.tokens, keys, lambda: not waiting.cancelled)
        prefix = job.run(hit)
        if waiting.cancelled:
            self._hold(call, session, [], 0.0, renew=False)
            return Failure(kind=FailureKind.CANCELLED, message="cancelled")
        self._hold(call, session, keys, call.hold_seconds, renew=True)
        cached = prefix.outcome.blocks if len(hit) < len(keys) else len(hit)
        return PrefillDone(
            prompt_tokens=len(call.tokens),
            cached_tokens=cached * engine.layout.block_tokens,
            computed_tokens=job.computed,
            stored_blocks=job.stored,
            queue_seconds=started - waiting.since,
            seconds=time.monotonic() - started,
            load_seconds=prefix.outcome.seconds,
            loaded=loaded(prefix.outcome),
            faults=dict(session.faults),
        )

    def _hold(self, call: PrefillCall, session: StoreSession, keys: list[bytes], seconds: float, renew: bool) -> None:
        """For the decode that is to come, if one is: a store that is full must not lose what was just computed for it."""
        namespace = self._engine.link.namespace
        if call.hold_seconds and session.usable and namespace is not None:
            self._holds.hold(namespace.name, call.id, keys, seconds, renew)
