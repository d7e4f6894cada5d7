"""Which look-ups are one request: an engine asks about one prompt several times. Pure; told of look-ups in order of time.

A request is the look-up of a chain by a client (a process):

- A match begins a request, unless the same client has matched the same chain within `MERGE_SECONDS`, has not acquired
  anything of it since, and finds no more than then: a scheduler that asks again about what still waits.
- An acquire belongs to the latest open request of its client whose chain has these keys next, at most `MERGE_SECONDS` after
  the request's last look-up. Without one it begins a request: a client that never matches.
- A hand-over is none: another client asks within `HANDOVER_SECONDS` for the very chain that one has just asked for, and finds
  more, or waits for it. It is the decode worker that takes over what the prefill worker has put. Nor are the other shards' parts
  of a chain that was just asked for in one shard.

A request is told when it is `MERGE_SECONDS` old, so that hints of its acquires are in it. GETs over HTTP are objects, and
have no chain. Not here: how a request is written (`recorder.py`).
"""

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mooncask.daemon.insight.lookups import Lookup, LookupKind
from mooncask.tiers.block import Hint
from mooncask.tiers.namespace import Namespace

MERGE_SECONDS = 5.0
HANDOVER_SECONDS = 60.0
OPEN_MAX = 4096
"""Requests that wait for their age; past that the oldest are told early."""
OF_CLIENT_MAX = 64
"""Open requests of one client that its look-ups are compared with."""
RECENT_MAX = 8192
"""Chains that may still be handed over."""


@dataclass(slots=True, eq=False)
class Prompt:
    """One request. `seconds` is its first look-up's monotonic time; hint fields are 0 where unknown."""

    seconds: float
    namespace: int
    model: bytes
    """Names model and tenant; shards of one have the same."""
    family: Mapping[str, str]
    keys: Sequence[bytes]
    client: bytes
    found: int
    latest: float
    taken: int = 0
    """How many of its blocks were acquired, counted from the first."""
    output_tokens: int = 0
    conversation: int = 0
    turn: int = 0

    def note(self, hint: Hint) -> None:
        self.output_tokens = hint.expected_output or self.output_tokens
        if hint.conversation:
            self.conversation, self.turn = hint.conversation, hint.turn


class _Chain(NamedTuple):
    """Equal chains: equal keys mean equal whole prefixes."""

    model: bytes
    last_key: bytes


class _Asked(NamedTuple):
    client: bytes
    namespace: int
    last_key: bytes


class _Recent(NamedTuple):
    namespace: int
    client: bytes
    found: int
    seconds: float
    blocks: int


class Prompts:
    """Requests in the making."""

    def __init__(self) -> None:
        self._open: deque[Prompt] = deque()
        self._of_client: dict[bytes, deque[Prompt]] = {}
        self._by_chain: dict[_Asked, Prompt] = {}
        """The latest open request of a client for a chain."""
        self._recent: OrderedDict[_Chain, _Recent] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def see(self, lookup: Lookup) -> None:
        """The next look-up."""
        if lookup.kind is LookupKind.HTTP_GET or lookup.namespace.spec.kind != "kv" or not lookup.keys:
            return
        prompt = self._continued(lookup)
        if prompt is not None:
            prompt.latest = lookup.seconds
            prompt.note(lookup.hint)
        elif not self._is_handed_over(lookup):
            self._begin(lookup)

    def due(self, now_seconds: float) -> list[Prompt]:
        """Those that are old enough, oldest first; they are open no more."""
        told = []
        while self._open and (len(self._open) > OPEN_MAX or self._open[0].seconds + MERGE_SECONDS <= now_seconds):
            told.append(self._end_oldest())
        return told

    def rest(self) -> list[Prompt]:
        """All that are left, at the end."""
        return [self._end_oldest() for _ in range(len(self._open))]

    def _continued(self, lookup: Lookup) -> Prompt | None:
        if lookup.kind is LookupKind.MATCH:
            prompt = self._by_chain.get(_Asked(lookup.client, lookup.namespace.id, lookup.keys[-1]))
            return prompt if prompt and _in_time(prompt, lookup) and _asks_again(prompt, lookup) else None
        for prompt in reversed(self._of_client.get(lookup.client, ())):
            if prompt.namespace == lookup.namespace.id and _in_time(prompt, lookup) and _takes(prompt, lookup):
                return prompt
        return None

    def _begin(self, lookup: Lookup) -> None:
        namespace, seconds, model = lookup.namespace, lookup.seconds, _model(lookup.namespace)
        prompt = Prompt(
            seconds, namespace.id, model, namespace.spec.family, lookup.keys, lookup.client, lookup.hits, seconds
        )
        prompt.note(lookup.hint)
        if lookup.kind is LookupKind.ACQUIRE:
            prompt.taken = len(lookup.keys)
        self._open.append(prompt)
        self._by_chain[_Asked(lookup.client, namespace.id, lookup.keys[-1])] = prompt
        self._of_client.setdefault(lookup.client, deque(maxlen=OF_CLIENT_MAX)).append(prompt)
        chain = _Chain(model, lookup.keys[-1])
        self._recent[chain] = _Recent(namespace.id, lookup.client, lookup.hits, seconds, len(lookup.keys))
        self._recent.move_to_end(chain)
        if len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)

    def _is_handed_over(self, lookup: Lookup) -> bool:
        recent = self._recent.get(_Chain(_model(lookup.namespace), lookup.keys[-1]))
        if recent is None or recent.blocks != len(lookup.keys) or lookup.seconds - recent.seconds > HANDOVER_SECONDS:
            return False
        if recent.namespace != lookup.namespace.id:
            return True
        return recent.client != lookup.client and (lookup.waits or lookup.hits > recent.found)

    def _end_oldest(self) -> Prompt:
        prompt = self._open.popleft()
        asked = _Asked(prompt.client, prompt.namespace, prompt.keys[-1])
        if self._by_chain.get(asked) is prompt:
            del self._by_chain[asked]
        same_client = self._of_client.get(prompt.client)
        if same_client and same_client[0] is prompt:
            same_client.popleft()
            if not same_client:
                del self._of_client[prompt.client]
        return prompt


def _model(namespace: Namespace) -> bytes:
    spec = namespace.spec
    return (spec.fingerprint or spec.name.encode()) + spec.tenant.encode()


def _in_time(prompt: Prompt, lookup: Lookup) -> bool:
    return lookup.seconds - prompt.latest <= MERGE_SECONDS


def _asks_again(prompt: Prompt, lookup: Lookup) -> bool:
    return not prompt.taken and lookup.hits <= prompt.found and len(lookup.keys) == len(prompt.keys)


def _takes(prompt: Prompt, lookup: Lookup) -> bool:
    """Whether these are the next blocks of the chain; some may be left out, which the engine has itself."""
    keys, count = lookup.keys, len(lookup.keys)
    first = prompt.taken
    if first >= len(prompt.keys):
        return False
    if prompt.keys[first] != keys[0]:
        try:
            first = prompt.keys.index(keys[0], first)
        except ValueError:
            return False
    if list(prompt.keys[first : first + count]) != list(keys):
        return False
    prompt.taken = first + count
    return True
