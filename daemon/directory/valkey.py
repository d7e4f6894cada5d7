"""A directory that a Valkey or Redis server keeps, alone or as a Cluster. How it looks inside: `scripts.py`.

Soft state. The server down, slow or empty: look-ups answer nothing at once, news is thrown away, the state says since when; when
the server is back, or turns out to have forgotten this node, all that this node has is announced anew.

    up --a command fails or is too slow--> down --a heartbeat comes through--> up, and told everything again

A Cluster is down when the server with the nodes' records is; another one that is gone is a part of it (`parts.py`).
"""

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

import msgspec

from mooncask.daemon.directory.announcer import Announcements, Batch
from mooncask.daemon.directory.directory import INCARNATION_BYTES, NodeRecord, Release
from mooncask.daemon.directory.pacing import KEYS_MAX, Pace
from mooncask.daemon.directory.parts import PATIENCE_SECONDS, Call, Parts, Server
from mooncask.daemon.directory.scripts import (
    ANNOUNCE,
    GONE,
    NODE_KEY,
    NODES_KEY,
    RELEASE,
    RELEASED,
    SEEN,
    STRANGERS,
    WITHDRAW,
    locations,
    shard_of,
)
from mooncask.daemon.directory.values import parsed_incarnations, parsed_record
from mooncask.errors import PeerUnavailable

log = logging.getLogger(__name__)

LOOKUP_SECONDS_MAX = 0.5
"""What a look-up may take, however long its caller can wait."""
LATE_SECONDS = 0.05
"""A look-up that ends so long after its time says that this node has much to do, and nothing about the server."""
HEARTBEAT_SECONDS_MAX = 2.0
PROBE_SECONDS = 0.5
"""Between heartbeats while the server is down."""
COMMAND_SECONDS = 2.0
WRITE_SECONDS = 10.0
"""For news: that a server which all nodes tell everything at once is late with it does not mean that it is down; the heartbeats
find out."""
COALESCE_SECONDS = 0.005
"""News waits so long for more."""
CALL_KEYS = 512
"""Of one script call: the server does nothing else meanwhile, about a millisecond."""
REFRESH_SECONDS = 0.5
"""At least between two readings of the nodes because of a node that is not known."""
LOCATION_SECONDS = 7200
"""After which the server forgets a location that nobody repeats."""
RETELL_SECONDS = 2400
CLOSE_SECONDS = 0.5


class ValkeyDirectory:
    """See `Directory`."""

    kind = "valkey"

    def __init__(
        self,
        server: Server,
        record: Callable[[], NodeRecord],
        held: Callable[[], Iterator[tuple[bytes, Sequence[bytes]]]],
        counters: Counter[str],
        ttl_seconds: float,
    ) -> None:
        self._server = server
        self._record = record
        self._held = held
        self._counters = counters
        self._ttl_seconds = ttl_seconds
        self._me = record().incarnation
        self._news = Announcements()
        self._sending: list[Batch] = []
        self.on_shared: Callable[[bytes, Sequence[bytes]], None] = lambda ns_id, keys: None
        self._pace = Pace()
        self._parts = Parts(server)
        self._has_news = asyncio.Event()
        self._room = asyncio.Event()
        """Set when news was sent or thrown away: what is told anew comes no faster than that."""
        self._nodes: dict[bytes, NodeRecord] = {}
        self._read_seconds = 0.0
        """When the nodes were read last."""
        self._down_since = time.time()
        """Wall clock; 0 = it answers."""
        self._up_seconds = 0.0
        """When it answered again. A call from before that says nothing of it."""
        self._why = "not reached yet"
        self._twin = ""
        """What is wrong when two nodes write one record in turn."""
        self._known = False
        """Whether the server has heard of this run since it was reached."""
        self._retell = asyncio.Event()
        loops = (self._beat, self._send, self._tell_all)
        self._tasks = [asyncio.create_task(self._forever(loop)) for loop in loops]

    @property
    def state(self) -> str:
        if not self._down_since:
            return f"partly down: {len(self._parts)} of its shards do not answer" if self._parts else self._twin or "ok"
        return f"down since {time.strftime('%H:%M:%S', time.localtime(self._down_since))}: {self._why}"

    @property
    def waiting(self) -> int:
        """Blocks whose news is not sent yet."""
        return len(self._news)

    # --- looking ---

    async def lookup(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[list[bytes]]:
        if self._down_since:
            return [[] for _ in keys]
        began = time.monotonic()
        deadline = min(deadline, began + LOOKUP_SECONDS_MAX)
        self._counters["directory_lookups"] += 1
        try:
            values = await self._read(ns_id, keys, deadline)
            holders = {value: parsed_incarnations(value) for value in set(values)}  # a few nodes have all of it
            await self._meet(holders.values(), deadline)
        except PeerUnavailable as error:
            self._counters["directory_lookup_failures"] += 1
            now = time.monotonic()
            if now - deadline < LATE_SECONDS and (
                now - began > PATIENCE_SECONDS or deadline - began > PATIENCE_SECONDS
            ):
                self._fail(error, began)
            return [[] for _ in keys]
        live = {value: [one for one in some if one in self._nodes] for value, some in holders.items()}
        return [live[value].copy() for value in values]

    def node(self, incarnation: bytes) -> NodeRecord | None:
        return self._nodes.get(incarnation)

    async def nodes(self, deadline: float) -> list[NodeRecord]:
        if not self._down_since and time.monotonic() - self._read_seconds > REFRESH_SECONDS:
            with contextlib.suppress(PeerUnavailable):  # those known so far, then
                await self._read_nodes(deadline)
        age = time.monotonic() - self._read_seconds
        return [dataclasses.replace(node, seen_seconds=age) for node in self._nodes.values()]

    async def _read(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[bytes | None]:
        names, wave = locations(ns_id, keys), self._calls(keys)
        found: list[bytes | None] = [None] * len(keys)
        answers = await self._parts.carry_out([Call([names[index] for index in which]) for which in wave], deadline)
        for which, values in zip(wave, answers, strict=True):
            for index, value in zip(which, values or [], strict=values is not None):
                found[index] = value
        return found

    async def _meet(self, found: Iterable[list[bytes]], deadline: float) -> None:
        """A node that is not known may have come since the nodes were read."""
        strangers = {one for holders in found for one in holders} - self._nodes.keys() - {self._me}
        if strangers and time.monotonic() - self._read_seconds > REFRESH_SECONDS:
            await self._read_nodes(deadline)

    def _calls(self, keys: Sequence[bytes], most: int = CALL_KEYS) -> list[list[int]]:
        """Indexes of the keys, call by call."""
        shards: dict[int, list[int]] = {}
        if not self._server.sharded:
            shards[0] = list(range(len(keys)))
        else:
            for index, key in enumerate(keys):
                shards.setdefault(shard_of(key), []).append(index)
        return [some[at : at + most] for some in shards.values() for at in range(0, len(some), most)]

    # --- telling ---

    def announce(self, ns_id: bytes, keys: Sequence[bytes]) -> None:
        self._note(ns_id, keys, here=True)

    def withdraw(self, ns_id: bytes, keys: Sequence[bytes]) -> None:
        self._note(ns_id, keys, here=False)

    def _note(self, ns_id: bytes, keys: Sequence[bytes], *, here: bool) -> None:
        if self._down_since:
            return  # all is told when it is back; what left by then expires, or is corrected by who asks for it
        dropped = self._news.note(ns_id, keys, here=here)
        if dropped:
            self._counters["directory_news_dropped"] += dropped
            self._retell.set()
        self._has_news.set()

    def not_there(self, ns_id: bytes, keys: Sequence[bytes], incarnation: bytes) -> None:
        task = asyncio.create_task(self._correct(Batch(ns_id, False, list(keys)), incarnation))
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    async def _correct(self, batch: Batch, incarnation: bytes) -> None:
        began = time.monotonic()
        try:
            await self._write(batch, incarnation)
        except PeerUnavailable as error:
            self._fail(error, began)

    async def release(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[Release]:
        if self._down_since:
            raise PeerUnavailable("directory", self._why)
        coming = self._news.among(ns_id, keys).union(*(batch.keys for batch in self._sending if batch.ns_id == ns_id))
        answers = [Release.NOT_NOW for _ in keys]
        asked = [index for index, key in enumerate(keys) if key not in coming]
        names, arguments = locations(ns_id, [keys[index] for index in asked]), [self._me, *self._nodes]
        fresh = time.monotonic() - self._read_seconds <= REFRESH_SECONDS
        meanings = {RELEASED: Release.ELSEWHERE, STRANGERS: Release.LAST if fresh else Release.NOT_NOW}
        wave = self._calls([keys[index] for index in asked])
        began = time.monotonic()
        try:
            said = await self._parts.carry_out(
                [Call([names[index] for index in which], RELEASE, arguments) for which in wave], deadline
            )
            for which, answer in zip(wave, said, strict=True):
                for place, index in enumerate(which):
                    meaning = Release.UNKNOWN if answer is None else meanings.get(answer[place], Release.LAST)
                    answers[asked[index]] = meaning
            if not fresh and any(answers[index] is Release.NOT_NOW for index in asked):
                await self._read_nodes(deadline)
        except PeerUnavailable as error:
            self._fail(error, began)
            raise
        return answers

    async def _send(self) -> None:
        """For ever: what is waiting, in batches."""
        while True:
            await self._has_news.wait()
            await asyncio.sleep(COALESCE_SECONDS)
            self._has_news.clear()
            while batches := self._news.take(KEYS_MAX):
                self._sending = batches
                await self._send_some(batches)
                self._sending = []
                self._room.set()

    async def _send_some(self, batches: list[Batch]) -> None:
        began = time.monotonic()
        try:
            for batch in batches:
                await self._write(batch, self._me)
        except PeerUnavailable as error:
            self._pace.failed()
            self._fail(error, began)
            if not self._down_since:
                self._retell.set()

    async def _write(self, batch: Batch, incarnation: bytes) -> None:
        names = locations(batch.ns_id, batch.keys)
        script = ANNOUNCE if batch.here else WITHDRAW
        arguments: list[bytes | int] = [incarnation, *[LOCATION_SECONDS * 1000] * batch.here]
        for wave in self._waves(batch.keys):
            began = time.monotonic()
            calls = [Call([names[index] for index in which], script, arguments) for which in wave]
            answers = await self._parts.carry_out(calls, began + WRITE_SECONDS)  # a lost part is told when it is back
            self._pace.took(sum(map(len, wave)), time.monotonic() - began)
            if batch.here:
                self._note_shared(batch, wave, answers)
        if batch.here:
            self._counters["directory_announced"] += len(batch.keys)
        else:
            self._counters["directory_withdrawn"] += len(batch.keys)

    def _note_shared(self, batch: Batch, wave: list[list[int]], answers: list[list[int] | None]) -> None:
        """Blocks that others have announced as well."""
        answered = [(which, places) for which, places in zip(wave, answers, strict=True) if places]
        shared = [batch.keys[which[place - 1]] for which, places in answered for place in places]
        if shared:
            self.on_shared(batch.ns_id, shared)

    def _waves(self, keys: Sequence[bytes]) -> Iterator[list[list[int]]]:
        """Calls that are under way together. What a Cluster gets of one shard is one call however little it is: a call costs this
        node more than a key does."""
        calls = self._calls(keys, min(CALL_KEYS, self._pace.keys))
        while calls:
            wave = [calls.pop()]
            size = len(wave[0])
            while calls and size + len(calls[-1]) <= self._pace.keys:
                wave.append(calls.pop())
                size += len(wave[-1])
            yield wave

    async def _tell_all(self) -> None:
        """For ever: everything this node has, when the server may not know it, and every now and then."""
        while True:
            try:
                async with asyncio.timeout(RETELL_SECONDS):
                    await self._retell.wait()
            except TimeoutError:
                pass
            self._retell.clear()
            self._counters["directory_retold"] += 1
            for ns_id, keys in self._held():
                if self._down_since:
                    break
                self.announce(ns_id, keys)
                if len(self._news) > KEYS_MAX:
                    self._room.clear()
                    await self._room.wait()
                await asyncio.sleep(0)

    # --- being there ---

    async def _beat(self) -> None:
        """For ever: this node lives, and who else does."""
        while True:
            began = time.monotonic()
            try:
                await self._be_seen()
            except PeerUnavailable as error:
                self._fail(error, began)
                await self._server.renew()
            interval = min(HEARTBEAT_SECONDS_MAX, self._ttl_seconds / 3)
            await asyncio.sleep(PROBE_SECONDS if self._down_since else interval)

    async def _be_seen(self) -> None:
        record, deadline = self._record(), time.monotonic() + COMMAND_SECONDS
        value = self._me + msgspec.msgpack.encode(record)
        keys = [NODE_KEY + record.name.encode(), NODES_KEY]
        milliseconds = int(self._ttl_seconds * 1000)
        before = await self._server.run(SEEN, keys, [value, milliseconds, record.name.encode()], deadline)
        forgotten = before is None or before[:INCARNATION_BYTES] != self._me
        twin = f"another node is called {record.name} too" if forgotten and self._known and before is not None else ""
        if twin and not self._twin:
            log.error("%s: names must differ; what either has is found only now and then", twin)
        self._twin = twin
        if time.monotonic() - self._read_seconds >= self._ttl_seconds / 3 or self._down_since or forgotten:
            await self._read_nodes(deadline)
        if self._down_since or (forgotten and not twin):
            log.info("the directory answers, and is told what this node has")
            self._down_since, self._known, self._up_seconds = 0.0, True, time.monotonic()
            self._retell.set()
        if await self._parts.forgotten(deadline) or (self._parts and await self._parts.probe(deadline)):
            self._retell.set()

    async def _read_nodes(self, deadline: float) -> None:
        names = sorted(await self._server.command("SMEMBERS", NODES_KEY, deadline=deadline))
        values = await self._server.command("MGET", *(NODE_KEY + n for n in names), deadline=deadline) if names else []
        nodes = [parsed_record(value) for value in values if value is not None]
        self._nodes = {node.incarnation: node for node in nodes if node is not None and node.incarnation != self._me}
        self._read_seconds = time.monotonic()
        dead = [name for name, value in zip(names, values, strict=True) if value is None]
        if dead:
            await self._server.command("SREM", NODES_KEY, *dead, deadline=deadline)

    def _fail(self, error: PeerUnavailable, began: float) -> None:
        """A call that began then has failed."""
        if began < self._up_seconds:
            return
        self._why = error.why[:200]
        if not self._down_since:
            self._down_since = time.time()
            self._counters["directory_failures"] += 1
            log.warning("the directory does not answer: %s; this node goes on with what is here", self._why)
        self._news.clear()
        self._room.set()

    async def _forever(self, work: Callable[[], Awaitable[None]]) -> None:
        """The top of a task: a fault is logged, and the work begun anew."""
        while True:
            try:
                await work()
            except Exception:
                log.exception("the directory's %s failed by a fault of this daemon", getattr(work, "__name__", "task"))
                await asyncio.sleep(PROBE_SECONDS)

    async def close(self) -> None:
        """The others are told, if that takes no time."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        name = self._record().name.encode()
        try:
            if not self._down_since:
                deadline = time.monotonic() + CLOSE_SECONDS
                await self._server.run(GONE, [NODE_KEY + name, NODES_KEY], [self._me, name], deadline)
        except PeerUnavailable:
            pass
        await self._server.close()
