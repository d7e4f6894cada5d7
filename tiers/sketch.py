"""How often was a key seen lately? A count-min sketch with conservative update that forgets by halving.

Used for promotion: a block read `promote_after` times within the sketch's window moves up. Not here: what is done with
the answer (the store).
"""

ROWS = 4
COUNT_MAX = 255
WINDOW_PER_CAPACITY = 10

_WORD = (1 << 64) - 1
_PRIME = (1 << 61) - 1
_HALVED = bytes(count >> 1 for count in range(256))


class FrequencySketch:
    """Estimates counts in 4 to 8 bytes a key of `capacity`; deterministic by `seed`. Not safe for concurrent use.

    After `10 * capacity` additions every counter is halved, and so again each time. Between two halvings an estimate is
    never below the true number of additions since the last one, up to 255; it is above it where four other keys collide.
    """

    __slots__ = ("_additions", "_mask", "_rows", "_seed", "window")

    def __init__(self, capacity: int, seed: int = 0) -> None:
        """`capacity`: how many different keys the window is expected to see, at least 1."""
        assert capacity >= 1, capacity
        width = 1 << max(4, (capacity - 1).bit_length())
        self._rows = tuple(bytearray(width) for _ in range(ROWS))
        self._mask = width - 1
        self._seed = _mix(seed)
        self._additions = 0
        self.window = WINDOW_PER_CAPACITY * capacity

    def add(self, key: bytes | int) -> None:
        """Count one occurrence of `key`."""
        places = self._places(key)
        lowest = min(row[place] for row, place in zip(self._rows, places, strict=True))
        if lowest < COUNT_MAX:
            for row, place in zip(self._rows, places, strict=True):
                if row[place] == lowest:
                    row[place] = lowest + 1
        self._additions += 1
        if self._additions >= self.window:
            self._age()

    def estimate(self, key: bytes | int) -> int:
        """About how often `key` was added lately, 0 to 255. Changes nothing."""
        return min(row[place] for row, place in zip(self._rows, self._places(key), strict=True))

    def _age(self) -> None:
        self._rows = tuple(row.translate(_HALVED) for row in self._rows)
        self._additions = 0

    def _places(self, key: bytes | int) -> tuple[int, int, int, int]:
        """One place a row, by double hashing: an odd step visits different places for each row."""
        hashed = _mix(self._seed ^ _number(key))
        step = (hashed >> 32) | 1
        mask = self._mask
        return hashed & mask, hashed + step & mask, hashed + 2 * step & mask, hashed + 3 * step & mask


def _number(key: bytes | int) -> int:
    """A key as a number below 2^64; long ones are folded modulo a prime, with their length."""
    if isinstance(key, int):
        return key & _WORD
    return (int.from_bytes(key) + len(key)) % _PRIME


def _mix(number: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit changes every output bit."""
    number = (number + 0x9E3779B97F4A7C15) & _WORD
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _WORD
    return number ^ (number >> 31)
