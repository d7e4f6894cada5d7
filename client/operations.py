"""Every call of the protocol: the request it builds, what its answer means. Shared by the sync and the async client.

A key is bytes: 16 for a KV block (`hashing.chain`), a name in UTF-8 for an object. Lists go as columns, at most
`wire.BATCH_MAX` items a request; `flows.py` splits longer ones where that does not change their meaning.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mooncask.client import wire
from mooncask.client.blocks import Blocks, Slot
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.session import Builder, ProgressCallback, Session, milliseconds
from mooncask.client.wire import BlockStat, CommitState, HintFields, Tier
from mooncask.errors import BadRequest, MooncaskError, revive

T = TypeVar("T")
Keys = Sequence[bytes]
Replies = list[wire.Reply]

GRACE_SECONDS = 0.25
"""How much longer than the daemon's own deadline the client waits, so that the daemon's answer "too late" is heard."""


@dataclass(frozen=True, slots=True)
class Operation(Generic[T]):
    """One request. `seconds` is how long the client waits; `session` is set when only that connection will do."""

    what: str
    build: Builder
    shape: Callable[[Session, Replies], T]
    seconds: float
    namespace: NamespaceHandle | None = None
    session: Session | None = None
    progress: ProgressCallback | None = None
    reservation: int = 0
    writes: bool = False

    def check(self, session: Session) -> None:
        """Before it is sent on `session`. Raises UnknownReservation after a reconnect, BadRequest for a reading client."""
        if self.session is not None:
            self.session.check_is(session, self.reservation)
        if self.writes:
            session.check_can_write()


AnyOperation = Operation[Any]


@dataclass(frozen=True, slots=True)
class Match:
    """A usable prefix: block i's fastest tier, and the predicted seconds until blocks 0..i are loaded."""

    tiers: list[Tier]
    seconds: list[float]

    def __len__(self) -> int:
        return len(self.tiers)


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a listing; `more` says that another one follows after its last key."""

    blocks: list[BlockStat]
    more: bool


def check_column(keys: Keys, name: str, column: Sequence[Any]) -> None:
    """A column that may be left out has an item a key. Raises BadRequest."""
    if column and len(column) != len(keys):
        raise BadRequest(f"{len(keys)} keys and {len(column)} {name}; each key needs one, or give none")


@dataclass(frozen=True, slots=True)
class NewBlocks:
    """Blocks to be put, as columns; empty columns mean unknown."""

    keys: Keys
    sizes: Sequence[int]
    parents: Sequence[bytes] = ()
    depths: Sequence[int] = ()
    tokens: Sequence[int] = ()
    layers: int = 0
    hint: HintFields | None = None

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.keys):
            raise BadRequest(f"{len(self.keys)} keys and {len(self.sizes)} payloads; each key needs one")
        for name, column in (("parents", self.parents), ("depths", self.depths), ("tokens", self.tokens)):
            check_column(self.keys, name, column)

    def part(self, start: int, stop: int) -> "NewBlocks":
        cut = slice(start, stop)
        return NewBlocks(
            self.keys[cut],
            self.sizes[cut],
            self.parents[cut],
            self.depths[cut],
            self.tokens[cut],
            self.layers,
            self.hint,
        )


def open_namespace(request: wire.Open, seconds: float) -> Operation[NamespaceHandle]:
    def build(id: int, _: int) -> wire.Message:
        r = request
        return wire.Open(id, r.name, r.kind, r.family, r.shard, r.mode, r.hash, r.create)

    def shape(session: Session, replies: Replies) -> NamespaceHandle:
        opened = only_reply(replies, wire.Opened)
        namespace = NamespaceHandle(request, opened)
        session.handles[namespace.name] = opened.namespace
        return namespace

    return Operation("open", build, shape, seconds)


def reopen_namespace(namespace: NamespaceHandle, seconds: float) -> Operation[int]:
    """Opens a namespace on another connection; gives the handle there."""

    def shape(session: Session, replies: Replies) -> int:
        namespace.opened = only_reply(replies, wire.Opened)
        session.handles[namespace.name] = namespace.opened.namespace
        return namespace.opened.namespace

    return Operation("open", lambda id, _: namespace.reopening(id), shape, seconds)


def match(namespace: NamespaceHandle, keys: Keys, seconds: float) -> Operation[Match]:
    def shape(_: Session, replies: Replies) -> Match:
        reply = only_reply(replies, wire.Matched)
        return Match([Tier(tier) for tier in reply.tiers], reply.seconds)

    return Operation("match", lambda id, ns: wire.Match(id, ns, _list(keys)), shape, seconds, namespace)


def acquire(
    namespace: NamespaceHandle,
    keys: Keys,
    seconds: float,
    wait: bool = False,
    verify: bool = False,
    want_token: bool = False,
    hint: HintFields | None = None,
    progress: ProgressCallback | None = None,
) -> Operation[Blocks]:
    deadline_ms = milliseconds(seconds)
    return Operation(
        "acquire",
        lambda id, ns: wire.Acquire(id, ns, _list(keys), deadline_ms, wait, verify, want_token, hint),
        lambda session, replies: session.acquired(keys, replies),
        seconds + GRACE_SECONDS,
        namespace,
        progress=progress,
    )


def adopt(token: bytes, seconds: float) -> Operation[Blocks]:
    def shape(session: Session, replies: Replies) -> Blocks:
        return session.adopted(only_reply(replies, wire.Adopted))

    return Operation("adopt", lambda id, _: wire.Adopt(id, token), shape, seconds)


def expect(namespace: NamespaceHandle, keys: Keys, ttl_seconds: float, seconds: float) -> Operation[int]:
    ttl_ms = milliseconds(ttl_seconds)
    return _counted("expect", lambda id, ns: wire.Expect(id, ns, _list(keys), ttl_ms), seconds, namespace)


def recomputed(
    namespace: NamespaceHandle,
    key: bytes,
    blocks: int,
    tier: Tier,
    load_seconds: float,
    compute_seconds: float,
    seconds: float,
) -> Operation[int]:
    def build(id: int, ns: int) -> wire.Message:
        return wire.Recomputed(id, ns, key, blocks, int(tier), load_seconds, compute_seconds)

    return _counted("recomputed", build, seconds, namespace)


def reserve(namespace: NamespaceHandle, new: NewBlocks, seconds: float) -> Operation[tuple[Session, list[Slot | None]]]:
    def build(id: int, ns: int) -> wire.Message:
        columns = (_list(new.parents), list(new.depths), list(new.tokens))
        return wire.Reserve(
            id, ns, _list(new.keys), list(new.sizes), milliseconds(seconds), *columns, new.layers, new.hint
        )

    def shape(session: Session, replies: Replies) -> tuple[Session, list[Slot | None]]:
        return session, session.reserved(new.keys, new.sizes, only_reply(replies, wire.Reserved))

    return Operation("reserve", build, shape, seconds + GRACE_SECONDS, namespace, writes=True)


def advance(session: Session, slots: Sequence[Slot], layer: int, seconds: float) -> Operation[int]:
    ids = [slot.reservation for slot in slots]
    return _on_session("advance", lambda id, _: wire.Advance(id, ids, layer), session, ids, seconds)


def commit(
    session: Session,
    slots: Sequence[Slot],
    seconds: float,
    durable: bool,
    digests: Sequence[bytes],
    token_ids: Sequence[bytes] = (),
) -> Operation[list[CommitState]]:
    """Raises the first block's error when some fail; the others are published then, and may be put again."""
    ids, generations = [slot.reservation for slot in slots], [slot.generation for slot in slots]
    deadline_ms = milliseconds(seconds)

    def shape(_: Session, replies: Replies) -> list[CommitState]:
        reply = only_reply(replies, wire.Committed)
        if reply.failures:
            raise _first_failure(reply.failures, len(slots))
        return [CommitState(state) for state in reply.states]

    return Operation(
        "commit",
        lambda id, _: wire.Commit(id, ids, generations, deadline_ms, list(digests), durable, list(token_ids)),
        shape,
        seconds + GRACE_SECONDS,
        session=session,
        reservation=ids[0],
    )


def pin(namespace: NamespaceHandle, keys: Keys, seconds: float) -> Operation[int]:
    return _counted("pin", lambda id, ns: wire.Pin(id, ns, _list(keys)), seconds, namespace)


def unpin(namespace: NamespaceHandle, keys: Keys, seconds: float) -> Operation[int]:
    return _counted("unpin", lambda id, ns: wire.Unpin(id, ns, _list(keys)), seconds, namespace)


def set_ttl(namespace: NamespaceHandle, keys: Keys, ttl_seconds: float | None, seconds: float) -> Operation[int]:
    # A time that is nearly over must not become 0, which means "for ever".
    ttl_ms = 0 if ttl_seconds is None else max(1, milliseconds(ttl_seconds))
    return _counted("set_ttl", lambda id, ns: wire.SetTtl(id, ns, _list(keys), ttl_ms), seconds, namespace)


def evict(namespace: NamespaceHandle, keys: Keys, seconds: float) -> Operation[int]:
    return _counted("evict", lambda id, ns: wire.Evict(id, ns, _list(keys)), seconds, namespace)


def stat(namespace: NamespaceHandle, keys: Keys, seconds: float) -> Operation[list[BlockStat | None]]:
    return Operation(
        "stat",
        lambda id, ns: wire.Stat(id, ns, _list(keys)),
        lambda _, replies: only_reply(replies, wire.Blocks).blocks,
        seconds,
        namespace,
    )


def status(seconds: float) -> Operation[wire.Status]:
    return Operation(
        "status", lambda id, _: wire.Stat(id), lambda _, replies: only_reply(replies, wire.Status), seconds
    )


def list_blocks(namespace: NamespaceHandle, prefix: bytes, after: bytes, limit: int, seconds: float) -> Operation[Page]:
    def shape(_: Session, replies: Replies) -> Page:
        reply = only_reply(replies, wire.Blocks)
        return Page([block for block in reply.blocks if block is not None], reply.more)

    return Operation("list", lambda id, ns: wire.ListBlocks(id, ns, prefix, after, limit), shape, seconds, namespace)


def verify(namespace: NamespaceHandle, keys: Keys, seconds: float) -> Operation[list[bool]]:
    deadline_ms = milliseconds(seconds)
    return Operation(
        "verify",
        lambda id, ns: wire.Verify(id, ns, _list(keys), deadline_ms),
        lambda _, replies: [block is not None for block in only_reply(replies, wire.Blocks).blocks],
        seconds + GRACE_SECONDS,
        namespace,
    )


def _list(items: Sequence[T]) -> list[T]:
    return items if isinstance(items, list) else list(items)


def only_reply(replies: Replies, kind: type[T]) -> T:
    (reply,) = replies
    if not isinstance(reply, kind):
        raise BadRequest(f"the daemon answered {type(reply).__name__} where {kind.__name__} belongs; upgrade the older")
    return reply


def _counted(what: str, build: Builder, seconds: float, namespace: NamespaceHandle) -> Operation[int]:
    return Operation(what, build, lambda _, replies: only_reply(replies, wire.Done).count, seconds, namespace)


def _on_session(what: str, build: Builder, session: Session, ids: list[int], seconds: float) -> Operation[int]:
    return Operation(
        what,
        build,
        lambda _, replies: only_reply(replies, wire.Done).count,
        seconds,
        session=session,
        reservation=ids[0] if ids else 0,
    )


def _first_failure(failures: Sequence[wire.Failure], count: int) -> MooncaskError:
    first = failures[0]
    error = revive(first.error, first.message, first.data)
    error.add_note(f"{len(failures)} of {count} blocks of this commit failed; the others are published")
    return error
