"""The scheduler's side: which blocks are loaded and saved, and when vLLM may free them. Imports no vLLM.

    matched()    look up, lease                 None while it is under way
    allocated()  the engine has places          the leases go into a LoadPlan
    step()       plans of this step             workers adopt, load, save
    reported()   what workers did
    finished()   the request ends               True: blocks stay until its saves are done

For one thread, the scheduler's, which never waits for the daemon.
"""

import itertools
import secrets
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

from mooncask.client.operations import Match
from mooncask.engine_adapter.vllm.connection import StoreConnection
from mooncask.engine_adapter.vllm.counters import Counters
from mooncask.engine_adapter.vllm.handover import (
    FIELD,
    HandOver,
    named_by_caller,
    wants_description,
    wants_remote_decode,
)
from mooncask.engine_adapter.vllm.handover_holds import HandOverHolds
from mooncask.engine_adapter.vllm.kv_groups import BlockTable, KvGroups
from mooncask.engine_adapter.vllm.load_decision import Limit, LoadDecisions
from mooncask.engine_adapter.vllm.lookups import Found, Lookups, Question
from mooncask.engine_adapter.vllm.messages import LoadDone, LoadPlan, SavePlan, StepPlan, WorkerReport
from mooncask.engine_adapter.vllm.request_state import EngineRequest, RequestState, Span
from mooncask.engine_adapter.vllm.requests import Describe, Requests

IDLE_SECONDS = 0.002
"""A step without tokens waits this long for look-ups, instead of asking again at once."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A request that computes tokens in this step."""

    request_id: str
    before: int
    """Tokens that have KV before the step."""
    computed_tokens: int
    """When the step is done."""
    new_blocks: BlockTable
    all_new: bool
    """These are all its blocks, not more of them."""


class SchedulerSide:
    def __init__(
        self,
        connection: StoreConnection,
        counters: Counters,
        describe: Describe,
        groups: KvGroups,
        *,
        reads: bool,
        writes: bool,
        hands_over: bool,
        workers: int,
    ) -> None:
        """`connection` has all shards; `hands_over`: replies tell what a decode engine can load; `workers`: how many report."""
        self.connection, self.counters = connection, counters
        self.lookups = Lookups(connection)
        self.decisions = LoadDecisions(connection.settings.load, connection.shards[0])
        self.settings = connection.settings
        self.requests = Requests(connection, self.lookups, counters, describe, groups, writes)
        self.states = self.requests.states
        self.holds = HandOverHolds(connection, self.lookups.in_order)
        self._reads, self._writes, self._hands_over = reads, writes, hands_over
        self._workers, self._groups = workers, groups
        self._block_tokens = connection.shards[0].block_tokens
        self._loads: list[LoadPlan] = []
        self._released: set[str] = set()
        self._left: dict[str, int] = {}
        """Finished requests with saves under way: the first block that they still have."""
        self._layerwise: set[str] = set()
        """Requests that load and compute in the step that is planned or under way."""
        self._numbers = itertools.count(1)
        self._computing: tuple[float, int] | None = None

    def arrived(self, request: EngineRequest) -> None:
        """A new request: from now on its blocks are followed, for saving."""
        self.requests.of(request)

    # --- loading ---

    def matched(self, request: EngineRequest, computed_tokens: int) -> int | None:
        """How many tokens after the first `computed_tokens` can be loaded; None while that is being found out."""
        if self._layerwise and computed_tokens:
            return None  # its prefix may be KV that is only just being loaded, and may not come
        state = self.requests.of(request)
        if not self._reads or not state.may_load:
            return 0
        if not self.requests.has_chain(state):
            return self._not_connected(state)
        start = computed_tokens // self._block_tokens
        found = self.lookups.answer(request.request_id, start, lambda: self._question(state, start))
        if found is None:
            return None
        state.layerwise = self.settings.layerwise and found.all_leased
        tokens = len(request.all_token_ids)
        most = (tokens - 1) // self._block_tokens if state.layerwise else self._groups.loadable(tokens)
        blocks = max(0, min(found.blocks, most) - start)
        state.promised = Span(start, start + blocks)
        if not blocks:
            self.lookups.drop(request.request_id)
            state.tried_at = request.num_preemptions
            state.saved = max(state.saved, found.stored)
        return blocks * self._block_tokens

    def _not_connected(self, state: RequestState) -> int | None:
        """A first connection that is being made is waited for like a look-up; no daemon at all is a miss at once."""
        if state.bypass or not self.requests.connecting:
            return 0
        state.waits_since = state.waits_since or time.monotonic()
        return None if time.monotonic() - state.waits_since < self.settings.deadline_seconds else 0

    def _question(self, state: RequestState, start: int) -> Question:
        keys, request = state.keys(), state.request
        self.counters.add("lookups")
        handover = HandOver.read(request.kv_transfer_params)
        expected = 0
        if handover is not None:
            refusal = handover.refusal(self.connection.handles[0].fingerprint.hex(), keys)
            expected = 0 if refusal else handover.n_blocks
            state.handover_id = "" if refusal else handover.handover_id
            state.wait_seconds = 0.0 if refusal else handover.wait_seconds
            self.counters.add("early_handovers", state.wait_seconds > 0)
            if refusal:
                self.counters.add("refused_handovers")
                self.requests.say_once(f"hand-over from {handover.node} is not used: {refusal}")
        tokens = len(request.all_token_ids)
        worth, late = partial(self._worth_loading, tokens, start), self.decisions.late
        return Question(keys, start, worth, late, expected, state.wait_seconds > 0)

    def _worth_loading(self, tokens: int, start: int, match: Match) -> Limit:
        limit = self.decisions.limit(tokens, start, match)
        if limit.blocks <= start < len(match):
            self.counters.add("slow_loads")
        return limit

    def loads_in_step(self, request_id: str) -> bool:
        """Whether what was matched last is loaded while the request computes, instead of before."""
        state = self.states.get(request_id)
        return state is not None and state.layerwise

    def allocated(self, request: EngineRequest, table: BlockTable, external_tokens: int) -> None:
        """vLLM has places for what was matched, or has decided against it (0)."""
        state, found = self.states.get(request.request_id), self.lookups.take(request.request_id) or Found()
        if state is None or not external_tokens:
            found.release()
        if state is None:
            return
        state.saved = max(state.saved, found.stored)
        if external_tokens:
            span = state.plan_load(external_tokens // self._block_tokens)
            state.loaders = self._workers
            self.counters.add("lookup_hit_tokens", external_tokens)
            self._loads.append(self._load_plan(state, span, table, found))
            if state.layerwise:
                self.counters.add("layerwise_loads")
                self._layerwise.add(request.request_id)

    def _load_plan(self, state: RequestState, span: Span, table: BlockTable, found: Found) -> LoadPlan:
        shards = [shard.shard for shard in self.connection.shards]
        return LoadPlan(
            state.request.request_id,
            state.keys()[span.start : span.stop],
            [self._groups.places(table, block) for block in range(span.start, span.stop)],
            dict(zip(shards, found.hand_over(), strict=False)),
            found.wait,
            found.seconds,
            found.tier,
            state.layerwise,
            state.wait_seconds if found.wait else 0.0,
        )

    # --- steps ---

    def step(self, scheduled: Iterable[Scheduled], preempted: Iterable[str], tokens: int) -> StepPlan:
        """What the workers do in the step that is about to run, which computes `tokens` tokens."""
        gone = frozenset(preempted)
        for request_id in gone & self.states.keys():
            self.states[request_id].preempted()
        leaving = self._leaving()
        saves = [save for one in scheduled if (save := self._save_plan(one)) is not None]
        plan = StepPlan(self._loads, saves, gone, leaving, frozenset(self._released), tokens > 0)
        self._loads, self._released, self._left = [], set(), {}
        self.lookups.sweep()
        self._computing = (time.monotonic(), tokens)
        pending: list[Future[Any]] = [*self.lookups.pending, *self.requests.connecting]
        if pending and not tokens and not plan.loads:
            wait(pending, IDLE_SECONDS, FIRST_COMPLETED)
        return plan

    def _leaving(self) -> dict[str, int]:
        """What vLLM may have taken back when it planned this step: the blocks that windows left behind in the one before."""
        saving = {name: state.leaving for name, state in self.states.items() if state.saving}
        return {name: block for name, block in {**saving, **self._left}.items() if block}

    def _save_plan(self, one: Scheduled) -> SavePlan | None:
        state = self.states.get(one.request_id)
        if state is None:
            return None
        state.in_step(one.computed_tokens, one.new_blocks, one.all_new)
        if not self._writes or not self.requests.has_chain(state):
            return None
        if self.requests.computing(state) and (name := named_by_caller(state.request.kv_transfer_params)):
            self.holds.begun(name)
        saved = state.saved
        span = state.plan_save(one.before, self.settings.save_generated)
        self.counters.add("passed_blocks", span.start - saved)
        if span.start == span.stop:
            return None
        keys = state.keys()[span.start : span.stop]
        assert state.chain is not None
        number = next(self._numbers)
        state.saving[number] = self._workers
        places = [self._groups.places(state.table, block) for block in range(span.start, span.stop)]
        parents = state.chain.parents(span.start, span.stop)
        tokens = state.published_tokens(span) if self.settings.publish_tokens else []
        return SavePlan(one.request_id, number, keys, parents, span.start, places, tokens)

    def reported(self, report: WorkerReport | None) -> set[int]:
        """The step's results came. Returns the engine's blocks whose KV is not what it takes it for: what a layer-wise load did
        not bring, and what was computed after it."""
        wrong: set[int] = set()
        self._layerwise.clear()  # such a load is over with its step
        if self._computing is not None and self._computing[1]:
            self.decisions.computed(self._computing[1], time.monotonic() - self._computing[0])
        self._computing = None
        if report is None:
            return wrong
        for state in self.states.values() if report.saved else ():
            for number in state.saving.keys() & report.saved.keys():
                state.saving[number] -= report.saved[number]
                if state.saving[number] <= 0:
                    del state.saving[number]
        self.holds.saved(report.saved)
        for done in report.loads:
            self.decisions.loaded(done)
            loading = self.states.get(done.request_id)
            if loading is not None:
                wrong.update(self._loaded(loading, done))
        return wrong

    def _loaded(self, state: RequestState, done: LoadDone) -> list[int]:
        """Blocks that are not what the engine takes them for, and has let others use."""
        wrong: list[int] = []
        if state.layerwise and state.loading is not None and done.blocks < done.wanted:
            wrong = state.table[0][state.loading.start + done.blocks :]
        state.loaded(done.blocks)
        state.loaders -= 1
        if not state.loaders:
            state.loading = None
            if state.handover_id:
                self.holds.loaded(state.handover_id)
        return wrong

    # --- ending ---

    def finished(self, request: EngineRequest, aborted: bool) -> tuple[bool, dict[str, Any] | None]:
        """Whether the blocks are to be kept until the workers say that they are free, and what the reply carries."""
        self.lookups.drop(request.request_id)
        state = self.states.pop(request.request_id, None)
        if state is None:
            return False, None
        if aborted or not state.saving:
            self.requests.writes_no_more(state)
        keep = bool(state.saving)  # empty while it loads, when vLLM keeps them by itself
        if keep:
            self._released.add(request.request_id)
            self._left[request.request_id] = state.leaving
        return keep, None if aborted else self._hand_over(state)

    def _hand_over(self, state: RequestState) -> dict[str, Any] | None:
        if state.chain is not None and wants_description(state.request.kv_transfer_params):
            self.requests.writes_no_more(state)
            return {FIELD: {"hashing": self.requests.hashing()}}
        remote = wants_remote_decode(state.request.kv_transfer_params)
        if not self._writes or state.chain is None or not (remote or self._hands_over):
            return None
        blocks = min(state.saved, state.request.num_prompt_tokens // self._block_tokens)
        keys = state.keys()[:blocks]
        family = self.connection.handles[0].fingerprint.hex()
        digest = keys[-1].hex() if keys else ""
        name = named_by_caller(state.request.kv_transfer_params) or secrets.token_hex(8)
        told = HandOver(family, digest, blocks, self.connection.node, name)
        if remote:
            over = partial(self.requests.writes_no_more, state)
            self.holds.handed_over(told.handover_id, keys, state.saving, over)
        return told.params(remote)

    def reset(self) -> None:
        """Nothing that was stored before is this engine's any more."""
        self.requests.begin_anew()

    def close(self) -> None:
        self.lookups.close()
        self.holds.close()
        self.connection.close()
