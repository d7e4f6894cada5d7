"""What the daemon's page POST /-/v1/hold takes and says: blocks that stay under a name. Nothing here does I/O."""

from mooncask.client.control import Answer

HAND_OVER_SECONDS = 60.0
"""So long blocks that prefill handed over are held at most, when decode does not say that it has them."""


class HoldRequest(Answer, frozen=True, kw_only=True):
    """POST /-/v1/hold takes this: these blocks stay under that name, in place of what it held before; `seconds` 0 ends the hold.

    It ends by itself after `seconds`, and with the daemon. `share`: of NVMe, what may be pinned by all together.
    """

    namespace: str
    name: str
    keys: tuple[str, ...] = ()
    seconds: float = 60.0
    share: float = 1.0
    renew: bool = False
    """Only if there is such a hold: one that somebody has ended meanwhile stays ended, and nothing is held."""


class Holding(Answer, frozen=True, kw_only=True):
    """POST /-/v1/hold answers this."""

    held_blocks: int
    missing: tuple[int, ...] = ()
    """Positions of keys that are not here: those are not held."""
