"""Who waits for which key, against a naive oracle: nobody waits for a key that nobody puts."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mooncask.daemon.arrivals import ENDS_SPARE, Arrivals, Key, Layers

KEYS = st.builds(Key, st.integers(1, 2), st.sampled_from([b"a", b"b"]))
PRODUCERS = st.sampled_from(["writer-1", "writer-2", "announcer"])
WAITERS = st.integers(1, 4)


class Waiting(RuleBasedStateMachine):
    """The oracle is two sets of pairs and a dict of times."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals: Arrivals[int] = Arrivals()
        self.producing: set[tuple[Key, str]] = set()
        self.promised: dict[tuple[Key, str], float] = {}
        self.waiting: set[tuple[Key, int]] = set()
        self.now = 0.0

    def told(self, found: list[int], keys: set[Key]) -> None:
        assert sorted(found) == sorted(waiter for key, waiter in self.waiting if key in keys)
        self.waiting = {(key, waiter) for key, waiter in self.waiting if key not in keys}

    def unproduced(self, pairs: set[tuple[Key, str]]) -> set[Key]:
        """Keys that lose their last producer with these."""
        left = {key for key, _ in self.producing - pairs}
        self.producing -= pairs
        self.promised = {pair: until for pair, until in self.promised.items() if pair in self.producing}
        return {key for key, _ in pairs} - left

    @rule(key=KEYS, producer=PRODUCERS)
    def announce(self, key: Key, producer: str) -> None:
        self.arrivals.announce(key, producer, 4)
        self.producing.add((key, producer))

    @rule(key=KEYS, producer=PRODUCERS, seconds=st.floats(0.1, 5))
    def expect(self, key: Key, producer: str, seconds: float) -> None:
        self.arrivals.expect(key, producer, self.now + seconds)
        self.producing.add((key, producer))
        self.promised[(key, producer)] = self.now + seconds

    @rule(key=KEYS, waiter=WAITERS)
    def wait(self, key: Key, waiter: int) -> None:
        layers = self.arrivals.wait(key, waiter)
        produced = any(name == key for name, _ in self.producing)
        assert (layers is not None) == produced
        if produced:
            self.waiting.add((key, waiter))

    @rule(key=KEYS, waiter=WAITERS)
    def leave(self, key: Key, waiter: int) -> None:
        self.arrivals.leave(key, waiter)
        self.waiting.discard((key, waiter))

    @rule(key=KEYS)
    def publish(self, key: Key) -> None:
        found = self.arrivals.published(key)
        self.unproduced({pair for pair in self.producing if pair[0] == key})
        self.told(found, {key})

    @rule(key=KEYS, producer=PRODUCERS)
    def give_up(self, key: Key, producer: str) -> None:
        found = self.arrivals.gone(key, producer)
        self.told(found, self.unproduced({(key, producer)} & self.producing))

    @rule(seconds=st.floats(0.1, 3))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        found = self.arrivals.expire(self.now)
        self.told(found, self.unproduced({pair for pair, until in self.promised.items() if until <= self.now}))

    @invariant()
    def agree(self) -> None:
        keys = {key for key, _ in self.producing}
        assert len(self.arrivals) == len(keys) and all(key in self.arrivals for key in keys)
        assert self.arrivals.promised == len(self.promised)
        assert self.arrivals.waiting == len(self.waiting)
        assert self.arrivals.next_expiry() == min(self.promised.values(), default=None)
        for producer in ("writer-1", "announcer"):
            assert sorted(self.arrivals.promises(producer)) == sorted(k for k, p in self.promised if p == producer)


TestWaiting = Waiting.TestCase
TestWaiting.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_progress_goes_forward_only() -> None:
    arrivals: Arrivals[str] = Arrivals()
    key = Key(1, b"k")
    arrivals.announce(key, "writer", 8)
    arrivals.wait(key, "reader")
    assert arrivals.advance(key, "writer", 3) == (Layers(3, 8), ["reader"])
    assert arrivals.advance(key, "writer", 2) == (Layers(3, 8), [])
    assert arrivals.advance(key, "stranger", 5)[1] == []
    assert arrivals.wait(key, "late") == Layers(3, 8)


def test_the_furthest_of_two_writers_counts() -> None:
    arrivals: Arrivals[str] = Arrivals()
    key = Key(1, b"k")
    arrivals.announce(key, "slow", 8)
    arrivals.announce(key, "fast", 8)
    arrivals.advance(key, "fast", 6)
    arrivals.advance(key, "slow", 1)
    assert arrivals.wait(key, "reader") == Layers(6, 8)


def test_a_renewed_promise_lives_as_long_as_the_newer_one() -> None:
    arrivals: Arrivals[str] = Arrivals()
    key = Key(1, b"k")
    arrivals.expect(key, "announcer", 5.0)
    arrivals.wait(key, "reader")
    arrivals.expect(key, "announcer", 9.0)
    assert arrivals.expire(6.0) == []
    assert arrivals.expire(9.0) == ["reader"]


def test_promises_that_are_renewed_again_and_again_take_no_more_room() -> None:
    arrivals: Arrivals[str] = Arrivals()
    key = Key(1, b"k")
    for second in range(10 * ENDS_SPARE):
        arrivals.expect(key, "announcer", float(second))
    assert arrivals.promised == 1 and len(arrivals._ends) <= ENDS_SPARE + 2
    assert arrivals.next_expiry() == 10 * ENDS_SPARE - 1


def test_whoever_follows_a_key_is_told_of_each_producer_that_comes_gets_further_or_leaves() -> None:
    arrivals: Arrivals[str] = Arrivals()
    key = Key(1, b"k")
    told: list[int] = []
    arrivals.on_change = lambda name: told.append(len(arrivals.producers(name)))
    arrivals.expect(key, "announcer", 5.0)
    assert arrivals.is_promised(key) and not arrivals.is_written(key)
    arrivals.announce(key, "writer", 4)
    arrivals.advance(key, "writer", 2)
    arrivals.advance(key, "writer", 1)
    assert arrivals.producers(key) == {"announcer": Layers(0, 0), "writer": Layers(2, 4)}
    arrivals.gone(key, "writer")
    arrivals.expire(6.0)
    arrivals.announce(key, "writer")
    arrivals.published(key)
    assert told == [1, 2, 2, 1, 0, 1, 0]
    assert arrivals.producers(key) == {} and not arrivals.is_promised(key)
