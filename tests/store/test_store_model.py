"""The whole stack against a dictionary: nothing wrong ever, nothing lost but by eviction, the books balance."""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from store_driver import KIB, MIB, assert_books_balance, content, get, settled, soon, store_config

from mooncask.errors import Busy, NoSuchBlock, NotEvictable, PinLimitExceeded
from mooncask.tiers.block import Extent, WriteMode
from mooncask.tiers.namespace import Namespace, NamespaceSpec
from mooncask.tiers.requests import PutRequest
from mooncask.tiers.store import Store

Result = TypeVar("Result")
KEYS = [b"key-%02d" % number for number in range(24)]
SIZES = [1, 4095, 4096, 70 * KIB, 300 * KIB]


def payload_of(stamp: int, size: int) -> bytes:
    return (b"%010d" % stamp * (size // 10 + 1))[:size]


class StoreModel(RuleBasedStateMachine):
    """`stored[key]`: the payload that a read must give, if it gives one. `durable`: keys that a restart must bring back."""

    with_nvme = True

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="mooncask-model-"))
        self.stored: dict[bytes, bytes] = {}
        self.durable: set[bytes] = set()
        self.held: list[tuple[Extent, bytes]] = []
        self.stamp = 0

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(work)

    @initialize(kind=st.sampled_from(["kv", "object"]), mode=st.sampled_from(list(WriteMode)))
    def begin(self, kind: str, mode: WriteMode) -> None:
        self.spec = NamespaceSpec("model", kind="kv" if kind == "kv" else "object", mode=mode)
        self.open()

    def open(self) -> None:
        config = store_config(self.folder if self.with_nvme else None, dram_bytes=2 * MIB)
        self.store: Store = self.run(Store.open(config))
        self.run(self.store.dram.wait_populated())
        self.namespace: Namespace = self.run(self.store.open_namespace(self.spec))

    # --- rules ---

    @rule(
        key=st.sampled_from(KEYS),
        size=st.sampled_from(SIZES),
        parent=st.sampled_from([b"", *KEYS]),
        durable=st.booleans(),
    )
    def put(self, key: bytes, size: int, parent: bytes, durable: bool) -> None:
        self.stamp += 1
        known = self.store.info(self.namespace, key)
        if known is not None and self.spec.kind == "kv":
            size = known.size
        try:
            self.run(self._put(key, payload_of(self.stamp, size), parent))
        except (Busy, PinLimitExceeded):
            return
        if durable and self.with_nvme and self.spec.mode is not WriteMode.MEMORY:
            self.run(self._make_durable(key))

    async def _put(self, key: bytes, payload: bytes, parent: bytes) -> None:
        request = PutRequest(key, len(payload), parent if parent != key else b"")
        [reservation] = await self.store.reserve(self.namespace, [request], soon(0.2))
        if reservation is None:
            return
        self.store.view(reservation.extent)[: len(payload)] = payload
        if await self.store.commit(reservation):
            self.stored[key] = payload
            self.durable.discard(key)

    async def _make_durable(self, key: bytes) -> None:
        try:
            await self.store.durable(self.namespace, key, soon())
        except (NoSuchBlock, NotEvictable):
            return
        self.durable.add(key)

    @rule(key=st.sampled_from(KEYS))
    def read(self, key: bytes) -> None:
        found = self.run(get(self.store, self.namespace, key))
        assert found is None or found == self.stored[key]

    @rule(key=st.sampled_from(KEYS))
    def lease(self, key: bytes) -> None:
        [extent] = self.store.hold(self.namespace, [key])
        if extent is not None:
            self.held.append((extent, self.stored[key]))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        extent, payload = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        assert content(self.store, extent) == payload
        self.store.drop(extent)

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=3))
    def delete(self, keys: list[bytes]) -> None:
        self.run(self.store.evict(self.namespace, keys))
        for key in keys:
            self.stored.pop(key, None)
            self.durable.discard(key)

    @rule(key=st.sampled_from(KEYS))
    def verify(self, key: bytes) -> None:
        if self.store.info(self.namespace, key) is not None:
            assert self.run(self.store.verify(self.namespace, key))

    @rule()
    def restart(self) -> None:
        self.let_go()
        self.run(self.store.close(5.0))
        self.open()
        if not self.with_nvme or self.spec.mode is WriteMode.MEMORY:
            self.stored.clear()
        for key in self.durable:
            assert self.run(get(self.store, self.namespace, key)) == self.stored[key]

    # --- always ---

    @invariant()
    def what_is_there_is_what_was_put(self) -> None:
        if hasattr(self, "store"):
            for key, slot in self.namespace.index.items():
                assert self.store._parts.catalogue.size[slot] == len(self.stored[key])

    @invariant()
    def leased_bytes_do_not_change(self) -> None:
        for extent, payload in self.held:
            assert content(self.store, extent) == payload

    def let_go(self) -> None:
        for extent, _ in self.held:
            self.store.drop(extent)
        self.held.clear()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.let_go()
            self.run(settled(self.store))
            if self.store._parts.bring_up is not None:
                self.run(self.store._parts.bring_up.drained())
            assert_books_balance(self.store)
            self.run(self.store.close())
        self.loop.close()
        shutil.rmtree(self.folder)


class DramOnlyModel(StoreModel):
    with_nvme = False


SETTINGS = settings(max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
TestStackModel = StoreModel.TestCase
TestStackModel.settings = SETTINGS
TestDramOnlyModel = DramOnlyModel.TestCase
TestDramOnlyModel.settings = SETTINGS
