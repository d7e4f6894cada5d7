"""How fast a tier delivers, learned from what it delivered: for "predicted seconds to load"."""

SMOOTHING = 0.2
"""Weight of the newest load: an estimate follows a change of speed within about ten loads."""
FIRST_GUESS_BYTES_PER_SECOND = 1e9


class LoadRate:
    """Exponentially weighted bytes per second of single loads."""

    def __init__(self) -> None:
        self.bytes_per_second = FIRST_GUESS_BYTES_PER_SECOND

    def loaded(self, size_bytes: int, seconds: float) -> None:
        if seconds > 0:
            self.bytes_per_second += SMOOTHING * (size_bytes / seconds - self.bytes_per_second)
