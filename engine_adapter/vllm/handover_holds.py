"""Blocks that a prefill engine handed over stay where they are until decode has loaded them, or for a minute.

The prefill side holds them by the hand-over's id once their saves are done; a decode engine at the same node ends the hold
after its load. Not here: the hold itself (`handover_hold.py`).
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mooncask.client.hold import HAND_OVER_SECONDS
from mooncask.engine_adapter.handover_hold import KEYS_MAX, HandOverHold
from mooncask.engine_adapter.vllm.connection import StoreConnection

BEGUN_MAX = 4096
EARLIER_SECONDS = 5.0
"""A hold may have ended so long before it should have: it was told of later, or another clock runs."""

Background = Callable[[str, Callable[[], object]], object]
"""Runs a call whose answer nobody waits for, after those before it."""


@dataclass(slots=True)
class _Ending:
    """A finished request, some of whose saves are under way: by number, the workers that are not done."""

    handover_id: str
    keys: Sequence[bytes]
    saving: dict[int, int]
    saved: Callable[[], None]


class HandOverHolds:
    """For the scheduler's thread; calls to the daemon run in the background."""

    def __init__(self, connection: StoreConnection, background: Background) -> None:
        self._connection, self._background = connection, background
        self._hold = HandOverHold(connection.settings.socket, connection.settings.deadline_seconds)
        self._ending: list[_Ending] = []
        self._begun: OrderedDict[str, float] = OrderedDict()
        """Hand-overs whose hold is made, with nothing in it yet, and until when it is there."""

    def begun(self, handover_id: str) -> None:
        """Decode may load its blocks while they are computed, and end the hold before all are saved: it is made now, and only
        renewed later, so that it ends for good. To be called again while it goes on."""
        now = time.monotonic()
        again = self._begun.pop(handover_id, 0.0) > now
        self._begun[handover_id] = now + HAND_OVER_SECONDS - EARLIER_SECONDS
        while len(self._begun) > BEGUN_MAX:
            self._begun.popitem(last=False)
        self._background("holding a hand-over", partial(self._hold_everywhere, handover_id, (), again))

    def handed_over(
        self, handover_id: str, keys: Sequence[bytes], saving: Mapping[int, int], saved: Callable[[], None]
    ) -> None:
        """They are held as soon as `saving` is done; `saved` is called then."""
        self._ending.append(_Ending(handover_id, keys[:KEYS_MAX], dict(saving), saved))
        self._hold_what_is_saved()

    def saved(self, numbers: Mapping[int, int]) -> None:
        """Workers are done with these saves."""
        for ending in self._ending:
            for number in ending.saving.keys() & numbers.keys():
                ending.saving[number] -= numbers[number]
                if ending.saving[number] <= 0:
                    del ending.saving[number]
        self._hold_what_is_saved()

    def loaded(self, handover_id: str) -> None:
        """Decode has them: nobody needs them held any more."""
        self._background("ending a hand-over's hold", partial(self._end_everywhere, handover_id))

    def close(self) -> None:
        self._hold.close()

    def _hold_what_is_saved(self) -> None:
        over = [ending for ending in self._ending if not ending.saving]
        self._ending = [ending for ending in self._ending if ending.saving]
        for ending in over:
            ending.saved()
            if ending.keys:
                again = self._begun.pop(ending.handover_id, 0.0) > time.monotonic()
                hold = partial(self._hold_everywhere, ending.handover_id, ending.keys, again)
                self._background("holding a hand-over", hold)

    def _hold_everywhere(self, handover_id: str, keys: Sequence[bytes], renew: bool) -> None:
        for handle in self._connection.handles:
            self._hold.hold(handle.name, handover_id, keys, renew=renew)

    def _end_everywhere(self, handover_id: str) -> None:
        for handle in self._connection.handles:
            self._hold.end(handle.name, handover_id)
