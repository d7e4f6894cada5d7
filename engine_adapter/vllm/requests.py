"""The requests that an engine has, each with its chain of keys as soon as the daemon said where chains begin.

For the scheduler's thread. Not here: what is loaded and saved (`scheduling.py`).
"""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from mooncask.engine_adapter.vllm.connection import StoreConnection
from mooncask.engine_adapter.vllm.counters import Counters
from mooncask.engine_adapter.vllm.handover import wants_remote_decode
from mooncask.engine_adapter.vllm.key_chain import BlockExtras, KeyChain
from mooncask.engine_adapter.vllm.kv_groups import KvGroups
from mooncask.engine_adapter.vllm.lookups import Lookups
from mooncask.engine_adapter.vllm.request_state import EngineRequest, RequestState

log = logging.getLogger(__name__)

ANNOUNCE_SECONDS = 60.0
NOT_ANY_MORE_SECONDS = 0.001
"""A promise that is renewed for so long is one taken back."""
SAID_MAX = 100

Describe = Callable[[EngineRequest], tuple[BlockExtras, str]]
"""What changes a request's KV beside its tokens, and why it must do without the store (empty: it need not)."""


class Requests:
    def __init__(
        self,
        connection: StoreConnection,
        lookups: Lookups,
        counters: Counters,
        describe: Describe,
        groups: KvGroups,
        writes: bool,
    ) -> None:
        self.states: dict[str, RequestState] = {}
        self._connection, self._lookups, self._counters = connection, lookups, counters
        self._describe, self._groups, self._writes = describe, groups, writes
        self._announced: Counter[bytes] = Counter()
        """How many requests have announced a block: prompts that begin alike announce the same ones."""
        self._said: set[str] = set()
        self._epoch = b""
        """In every root, once the engine was told to forget what it stored."""
        self._connecting = lookups.in_background("connecting", connection.open)

    def of(self, request: EngineRequest) -> RequestState:
        """The request's state, made when it is new."""
        state = self.states.get(request.request_id)
        if state is None:
            state = self.states[request.request_id] = RequestState(request, self._groups)
            self.has_chain(state)
        return state

    def has_chain(self, state: RequestState) -> bool:
        """False while the daemon was not reached yet, and for a request that does without the store."""
        if state.chain is None and not state.bypass and self._connected():
            self._begin_chain(state)
        return state.chain is not None

    @property
    def connecting(self) -> "list[Future[None]]":
        """The attempt to reach the daemon, while it is under way."""
        return [] if self._connecting.done() else [self._connecting]

    def _begin_chain(self, state: RequestState) -> None:
        request, handle = state.request, self._connection.handles[0]
        extras, state.bypass = self._describe(request)
        if state.bypass:
            self._counters.add("bypassed_requests")
            self.say_once(f"a request does without the store: {state.bypass}")
            return
        root = handle.root(self._epoch + (request.cache_salt or "").encode())
        state.chain = KeyChain(root, state.block_tokens, handle.hash, extras)

    def _connected(self) -> bool:
        connection = self._connection
        if len(connection.handles) == len(connection.shards):
            return True
        if connection.usable and self._connecting.done():
            self._connecting = self._lookups.in_background("connecting", connection.open)
        return False

    def computing(self, state: RequestState) -> bool:
        """A step computes some of it: its turn has come. A decode engine may ask for the blocks before they are written, and is to
        wait for them then; a request that waits itself is not announced, since nobody could say how long it will. Whether it was
        announced now."""
        now = time.monotonic()
        if not self._writes or now < state.announced_until or not wants_remote_decode(state.request.kv_transfer_params):
            return False
        blocks = state.request.num_prompt_tokens // state.block_tokens
        if keys := state.keys()[state.saved : blocks]:
            state.announced_until = now + ANNOUNCE_SECONDS / 2  # said again while it goes on
            self._only_here(state)
            self._announced.update(keys)
            state.announced = keys
            self._expect(keys, ANNOUNCE_SECONDS)
        return bool(keys)

    def writes_no_more(self, state: RequestState) -> None:
        """It was aborted, or all its saves are over, whether they worked or not: nobody is to wait for what has not been
        written, unless another request has announced it too."""
        if over := self._only_here(state):
            self._expect(over, NOT_ANY_MORE_SECONDS)

    def _only_here(self, state: RequestState) -> list[bytes]:
        """What no other request has announced of what this one had, which has announced nothing from now on."""
        keys, state.announced = state.announced, []
        self._announced.subtract(keys)
        over = [key for key in keys if self._announced[key] <= 0]
        for key in over:
            del self._announced[key]
        return over

    def _expect(self, keys: list[bytes], seconds: float) -> None:
        def expect() -> None:
            client, handles = self._connection.open()
            for handle in handles:
                client.expect(handle, keys, seconds)

        self._lookups.in_order("announcing", expect)

    def hashing(self) -> dict[str, Any]:
        """All that a router needs to make the keys of these requests' blocks, and the family that they belong to (with several
        shards: the first one's namespace). For one that is connected."""
        handle, shard = self._connection.handles[0], self._connection.shards[0]
        return {
            "namespace": handle.name,
            "fingerprint": handle.fingerprint.hex(),
            "tenant_salt": (handle.opened.salt + self._epoch).hex(),
            "hash": handle.hash,
            "block_tokens": shard.block_tokens,
            "block_bytes": sum(each.block_bytes for each in self._connection.shards),
            "family": shard.family,
        }

    def begin_anew(self) -> None:
        """The engine's KV of the past is not its own any more (its weights may be others): chains begin anew, for it alone."""
        self._epoch = b"reset\0" + secrets.token_bytes(16)
        for request_id, state in self.states.items():
            self._lookups.drop(request_id)
            state.forget()

    def say_once(self, text: str) -> None:
        """In the log, the first time."""
        if text not in self._said and len(self._said) < SAID_MAX:
            self._said.add(text)
            log.warning("%s", text)
