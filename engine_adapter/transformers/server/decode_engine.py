"""Continuous batching: answers join and leave a running batch between two steps.

    submit -> (a loader's thread) KV into the slot -> (the computing thread) the prompt's tail, a chunk between two steps
    -> a token a step -> (a loader's thread) write back -> the slot is free

Loading waits for the store and never for the model; the model never waits for the store. A call that finds no slot is
refused as busy at once: queues belong to the Conductor. On demand the batch stands still for a moment, between two steps, so
that a prefill which shares the machine goes first. Not here: HTTP.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from mooncask.client.worker_api import Admitted, DecodeCall, DecodeDone, Failure, FailureKind, Step
from mooncask.engine_adapter.handover_hold import HandOverHold
from mooncask.engine_adapter.transformers.engine import ignore_layer
from mooncask.engine_adapter.transformers.kv_layout import cache_over
from mooncask.engine_adapter.transformers.model import Model
from mooncask.engine_adapter.transformers.server.answer import Answer, Tell
from mooncask.engine_adapter.transformers.server.answer_store import fill, write_back
from mooncask.engine_adapter.transformers.server.batch_pass import next_logits
from mooncask.engine_adapter.transformers.server.kv_slots import KvSlots
from mooncask.engine_adapter.transformers.server.links import LinkPool
from mooncask.engine_adapter.transformers.server.stand_still import StandStill
from mooncask.errors import Busy, ContextTooLong

log = logging.getLogger(__name__)

STEPS_KEPT = 32
"""Steps remembered for the next report."""


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """How full the batch is."""

    running: int
    loading: int
    context_tokens: int
    free_slots: int
    slot_tokens: int
    requests: tuple[str, ...]


class DecodeEngine:
    """`submit`, `cancel`, `pause`, `load`, `take_steps` and `close` may be called from any thread."""

    def __init__(self, model: Model, links: LinkPool, slots: KvSlots, prefill_chunk: int, holds: HandOverHold) -> None:
        self._model, self._links, self._slots, self._prefill_chunk = model, links, slots, prefill_chunk
        self._holds = holds
        self._changed = threading.Condition()
        self._free = list(range(slots.slots))
        self._answers: dict[str, Answer] = {}
        self._arrived: deque[Answer] = deque()
        """Those whose KV is there, but not that of the prompt's tail."""
        self._batch: list[Answer] = []
        self._steps: deque[Step] = deque(maxlen=STEPS_KEPT)
        self._still = StandStill()
        self._closed = False
        self._loaders = ThreadPoolExecutor(slots.slots, "kv-loader")
        self._thread = threading.Thread(target=self._run, name="decode")
        self._thread.start()

    # --- from outside ---

    @property
    def positions_max(self) -> int:
        """Tokens of prompt and answer that one request may have together."""
        return min(self._model.positions_max, self._slots.capacity_tokens)

    def submit(self, call: DecodeCall, tell: Tell) -> Callable[[], None]:
        """Admits the answer and says so; it ends with a DecodeDone or a Failure. Raises Busy without a slot, ContextTooLong.

        Returns what cancels this very answer, and no later one of the same request.
        """
        if len(call.tokens) + call.max_tokens > self.positions_max:
            raise ContextTooLong(len(call.tokens), call.max_tokens, self.positions_max)
        with self._changed:
            if not self._free or self._closed or call.id in self._answers:
                raise Busy(f"one of {self._slots.slots} slots for request {call.id}", 0.0)
            slot = min(self._free)
            self._free.remove(slot)
            answer = self._answers[call.id] = Answer(call, slot, self._slots.buffer(slot), tell)
        tell(Admitted())
        try:
            self._loaders.submit(self._guarded, [answer], lambda: self._load(answer))
        except RuntimeError:  # closed in this moment
            self._end(answer, Failure(kind=FailureKind.CANCELLED, message="this worker is being stopped"))
        return lambda: self._cancel(answer)

    def cancel(self, request: str) -> None:
        """That answer ends within a step, or when the store has answered. Unknown ids are ignored."""
        with self._changed:
            answer = self._answers.get(request)
        if answer is not None:
            self._cancel(answer)

    def _cancel(self, answer: Answer) -> None:
        with self._changed:
            answer.cancelled = True
            self._changed.notify()

    def pause(self, seconds: float) -> float:
        """Computes nothing for so long, from the end of the running step on; 0 ends that. Returns what of it is done.

        What is cancelled ends all the same. No step is kept waiting for longer than PAUSE_SECONDS_MAX.
        """
        with self._changed:
            if seconds and not self._batch and not self._arrived:
                return 0.0
            granted = self._still.ask(seconds, time.monotonic())
            self._changed.notify()
            return granted

    def load(self) -> DecodeLoad:
        with self._changed:
            running, context = len(self._batch), sum(answer.length for answer in self._batch)
            loading = len(self._answers) - running
            return DecodeLoad(running, loading, context, len(self._free), self.positions_max, tuple(self._answers))

    def take_steps(self) -> list[Step]:
        """The last steps since the last call."""
        with self._changed:
            steps = list(self._steps)
            self._steps.clear()
            return steps

    def close(self) -> None:
        """Ends all answers as cancelled, and waits for the threads."""
        with self._changed:
            self._closed = True
            for answer in self._answers.values():
                answer.cancelled = True
            self._changed.notify()
        self._loaders.shutdown(wait=True)
        with self._changed:
            self._changed.notify()
        self._thread.join()

    # --- loaders' threads ---

    def _load(self, answer: Answer) -> None:
        with self._links.link() as link:
            fill(answer, link.session(priority=answer.call.priority), self._prefill_chunk)
            namespace = link.namespace
        missing, most = len(answer.call.tokens) - answer.length, answer.call.inline_prefill_tokens
        if missing > most and not answer.cancelled:
            text = f"the KV of {missing} tokens is missing, and at most {most} are computed here"
            self._end(answer, Failure(kind=FailureKind.KV_LOST, message=text))
            return
        with self._changed:
            answer.ready_at = self._moving_clock()
            self._arrived.append(answer)
            self._changed.notify()
        if answer.call.wait_seconds and answer.loaded_tokens and namespace is not None:
            self._holds.end(namespace.name, answer.call.id)

    def _write_back(self, answer: Answer) -> None:
        stored = 0
        if answer.call.write_back:
            with self._links.link() as link:
                stored = write_back(answer, link.session(priority=answer.call.priority))
        self._end(answer, answer.done(stored))

    # --- the computing thread ---

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._arrived or self._batch or self._closed)
                if self._closed and not self._answers:
                    return
                cancelled = self._stand_still()
                arrived = self._arrived[0] if self._arrived else None
                if arrived is None and not self._batch:  # closing: the loaders have the rest
                    self._changed.wait()
                    continue
            if cancelled:
                for answer in cancelled:
                    self._guarded([answer], partial(self._finish, answer))
                continue
            if arrived is not None:
                self._guarded([arrived], partial(self._compute_chunk, arrived))
            if self._batch:
                self._guarded(list(self._batch), self._step)

    def _stand_still(self) -> list[Answer]:
        """Waits as long as it is asked to; those that were cancelled meanwhile end at once. The condition is held."""
        cancelled = list[Answer]()
        self._still.stands(time.monotonic())
        while (left := self._still.left_seconds(time.monotonic())) and not self._closed:
            cancelled = [answer for answer in [*self._batch, *self._arrived] if answer.cancelled]
            if cancelled:
                break
            self._changed.wait(left)
        self._still.goes_on(time.monotonic())
        return cancelled

    def _moving_clock(self) -> float:
        """Seconds in which it did not stand still."""
        now = time.monotonic()
        return now - self._still.stood_seconds(now)

    def _compute_chunk(self, answer: Answer) -> None:
        """The next chunk of the prompt; with the last one the answer has its first token and joins the batch."""
        if answer.cancelled:
            self._finish(answer)
            return
        chunk = answer.tail.popleft()
        cache = cache_over(answer.buffer, answer.length, ignore_layer)
        logits = self._model.forward(answer.call.tokens[chunk.start : chunk.stop], cache)
        answer.length = chunk.stop
        with self._changed:
            self._still.stepped()
        if answer.tail:
            return
        answer.prompt_seconds = self._moving_clock() - answer.ready_at
        answer.take(logits.cpu().numpy())
        with self._changed:
            self._arrived.remove(answer)
            self._batch.append(answer)
        self._sweep()

    def _step(self) -> None:
        self._sweep()
        batch = list(self._batch)
        if not batch:
            return
        context, started = sum(answer.length for answer in batch), time.perf_counter()
        every = next_logits(self._model, self._slots, batch)
        for answer, logits in zip(batch, every, strict=True):
            answer.length += 1
            answer.take(logits)
        with self._changed:
            self._steps.append(Step(len(batch), context, time.perf_counter() - started))
            self._still.stepped()
        self._sweep()

    def _sweep(self) -> None:
        for answer in [answer for answer in self._batch if answer.reason or answer.cancelled]:
            self._finish(answer)

    def _finish(self, answer: Answer) -> None:
        if answer.cancelled and not answer.reason:
            self._end(answer, Failure(kind=FailureKind.CANCELLED, message="cancelled"))
        elif self._closed:
            self._end(answer, answer.done(0))
        else:
            self._leave(answer)
            self._loaders.submit(self._guarded, [answer], lambda: self._write_back(answer))

    # --- all threads ---

    def _guarded(self, answers: list[Answer], work: Callable[[], None]) -> None:
        """The top of what is done for these answers: a fault ends them, and nothing else. A whole answer stays whole."""
        try:
            work()
        except Exception as exc:
            log.exception("answers %s failed", [answer.call.id for answer in answers])
            text = f"{type(exc).__name__}: {exc}; the worker's log has more"
            for answer in answers:
                failure = Failure(kind=FailureKind.INTERNAL, message=text)
                self._end(answer, answer.done(0) if answer.reason else failure)

    def _leave(self, answer: Answer) -> None:
        with self._changed:
            if answer in self._batch:
                self._batch.remove(answer)
            if answer in self._arrived:
                self._arrived.remove(answer)

    def _end(self, answer: Answer, line: DecodeDone | Failure) -> None:
        self._leave(answer)
        with self._changed:
            if self._answers.get(answer.call.id) is not answer:
                return  # it has ended, and a later one of the same request may be here
            del self._answers[answer.call.id]
            self._free.append(answer.slot)
            self._changed.notify()
        answer.tell(line)
