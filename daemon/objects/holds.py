"""Which data is in use by a reader or a writer of this process: nothing of that is swept. Pure."""

from collections import Counter
from collections.abc import Callable

from mooncask.daemon.objects.manifest import ATTEMPT_BYTES, DATA_BYTES


class Holds:
    """Counts uses by name: an object's data as a whole, or one attempt to write a part of it (`manifest.attempt`)."""

    def __init__(self) -> None:
        self._uses: Counter[bytes] = Counter()
        self.released: Callable[[], None] = lambda: None
        """Called when something is not in use any more."""

    def hold(self, name: bytes) -> None:
        self._uses[name] += 1

    def drop(self, name: bytes) -> None:
        self._uses[name] -= 1
        if not self._uses[name]:
            del self._uses[name]
            self.released()

    def held(self, name: bytes) -> bool:
        return name in self._uses

    def covers(self, key: bytes) -> bool:
        """Whether a block of the hidden namespace is in use."""
        return key[:DATA_BYTES] in self._uses or key[:ATTEMPT_BYTES] in self._uses
