"""The published eviction algorithms once more, as slow lists, for tests to compare with. They share no code with tiers/.

Every block has size 1. `evict(allowed)` gets the keys that may leave; each oracle says in what order it looks at them.
"""

from collections.abc import Callable

Allowed = Callable[[int], bool]


class NaiveLRU:
    def __init__(self, capacity: int) -> None:
        self.keys: list[int] = []

    def access(self, key: int) -> None:
        if key in self.keys:
            self.keys.remove(key)
        self.keys.append(key)

    def remove(self, key: int) -> None:
        if key in self.keys:
            self.keys.remove(key)

    def evict(self, allowed: Allowed) -> int | None:
        for key in self.keys:
            if allowed(key):
                self.keys.remove(key)
                return key
        return None

    def resident(self) -> set[int]:
        return set(self.keys)


class NaiveFIFO(NaiveLRU):
    def access(self, key: int) -> None:
        if key not in self.keys:
            self.keys.append(key)


class NaiveLFU(NaiveLRU):
    """`keys` is in order of last use; the victim is the first of those with the smallest count."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.counts: dict[int, int] = {}

    def access(self, key: int) -> None:
        self.counts[key] = self.counts[key] + 1 if key in self.keys else 1
        super().access(key)

    def evict(self, allowed: Allowed) -> int | None:
        candidates = [key for key in self.keys if allowed(key)]
        if not candidates:
            return None
        victim = min(candidates, key=lambda key: self.counts[key])
        self.keys.remove(victim)
        return victim


class NaiveS3FIFO:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.small: list[int] = []
        self.main: list[int] = []
        self.ghosts: list[int] = []
        self.uses: dict[int, int] = {}

    def access(self, key: int) -> None:
        if key in self.small or key in self.main:
            self.uses[key] = min(3, self.uses[key] + 1)
            return
        if key in self.ghosts:
            self.ghosts.remove(key)
            self.main.append(key)
        else:
            self.small.append(key)
        self.uses[key] = 0

    def remove(self, key: int) -> None:
        for queue in (self.small, self.main, self.ghosts):
            if key in queue:
                queue.remove(key)

    def evict(self, allowed: Allowed) -> int | None:
        sides = [self._evict_small, self._evict_main]
        if len(self.small) < 0.1 * self.capacity:
            sides.reverse()
        for side in [*sides, *sides]:  # what `small` has just moved up may be the only one that can leave
            victim = side(allowed)
            if victim is not None:
                return victim
        return None

    def _evict_small(self, allowed: Allowed) -> int | None:
        for key in list(self.small):
            if self.uses[key] > 1:
                self.small.remove(key)
                self.main.append(key)
                self.uses[key] = 0
            elif allowed(key):
                self.small.remove(key)
                self.ghosts.append(key)
                while len(self.ghosts) > 0.9 * self.capacity:
                    self.ghosts.pop(0)
                return key
        return None

    def _evict_main(self, allowed: Allowed) -> int | None:
        while True:
            for key in self.main:
                if self.uses[key] > 0 or allowed(key):
                    break
            else:
                return None
            self.main.remove(key)
            if self.uses[key] == 0:
                return key
            self.uses[key] -= 1
            self.main.append(key)

    def resident(self) -> set[int]:
        return {*self.small, *self.main}


class NaiveTwoQ:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.a1in: list[int] = []
        self.a1out: list[int] = []
        self.am: list[int] = []

    def access(self, key: int) -> None:
        if key in self.am:
            self.am.remove(key)
            self.am.append(key)
        elif key in self.a1out:
            self.a1out.remove(key)
            self.am.append(key)
        elif key not in self.a1in:
            self.a1in.append(key)

    def remove(self, key: int) -> None:
        for queue in (self.a1in, self.a1out, self.am):
            if key in queue:
                queue.remove(key)

    def evict(self, allowed: Allowed) -> int | None:
        order = [self.a1in, self.am] if len(self.a1in) > self.capacity / 4 else [self.am, self.a1in]
        for queue in order:
            for key in queue:
                if allowed(key):
                    queue.remove(key)
                    if queue is self.a1in:
                        self.a1out.append(key)
                        while len(self.a1out) > self.capacity / 2:
                            self.a1out.pop(0)
                    return key
        return None

    def resident(self) -> set[int]:
        return {*self.a1in, *self.am}


class NaiveARC:
    """With REPLACE apart from the access, ghosts trimmed to |T1| + |B1| <= c and a total of 2c."""

    def __init__(self, capacity: int) -> None:
        self.c = capacity
        self.p = 0
        self.t1: list[int] = []
        self.t2: list[int] = []
        self.b1: list[int] = []
        self.b2: list[int] = []

    def access(self, key: int) -> None:
        if key in self.t1 or key in self.t2:
            self._drop(key)
            self.t2.append(key)
        elif key in self.b1:
            self.p = min(self.c, self.p + max(1, len(self.b2) // len(self.b1)))
            self._drop(key)
            self.t2.append(key)
        elif key in self.b2:
            self.p = max(0, self.p - max(1, len(self.b1) // len(self.b2)))
            self._drop(key)
            self.t2.append(key)
        else:
            self.t1.append(key)
        while self.b1 and len(self.t1) + len(self.b1) > self.c:
            self.b1.pop(0)
        while self.b2 and len(self.t1) + len(self.b1) + len(self.t2) + len(self.b2) > 2 * self.c:
            self.b2.pop(0)

    def _drop(self, key: int) -> None:
        for part in (self.t1, self.t2, self.b1, self.b2):
            if key in part:
                part.remove(key)

    remove = _drop

    def evict(self, allowed: Allowed) -> int | None:
        sides = [(self.t1, self.b1), (self.t2, self.b2)]
        if not (self.t1 and len(self.t1) > self.p):
            sides.reverse()
        for cached, ghosts in sides:
            for key in cached:
                if allowed(key):
                    cached.remove(key)
                    ghosts.append(key)
                    return key
        return None

    def resident(self) -> set[int]:
        return {*self.t1, *self.t2}


class NaiveSieve:
    """`keys` oldest first, None is the hand: it points at the key after it. `passed` were refused when the hand was there."""

    def __init__(self, capacity: int) -> None:
        self.keys: list[int | None] = [None]
        self.used: set[int] = set()
        self.passed: list[int] = []

    def access(self, key: int) -> None:
        if key in self.keys:
            self.used.add(key)
        elif key in self.passed:
            self.passed.remove(key)
            self.keys.insert(self.keys.index(None), key)
        elif self.keys[-1] is None:
            self.keys.insert(-1, key)
        else:
            self.keys.append(key)

    def remove(self, key: int) -> None:
        self.used.discard(key)
        for part in (self.keys, self.passed):
            if key in part:
                part.remove(key)

    def evict(self, allowed: Allowed) -> int | None:
        for key in self.passed:
            if allowed(key):
                self.passed.remove(key)
                return key
        while len(self.keys) > 1:
            hand = self.keys.index(None)
            del self.keys[hand]
            hand = hand if hand < len(self.keys) else 0
            found = self.keys[hand]
            assert found is not None
            if found in self.used:
                self.used.remove(found)
                self.keys.insert(hand + 1, None)
                continue
            self.keys[hand] = None
            if allowed(found):
                return found
            self.passed.append(found)
        return None

    def resident(self) -> set[int]:
        return {key for key in self.keys if key is not None} | set(self.passed)
