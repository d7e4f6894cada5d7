"""Blocks that a prefill engine handed over stay where they are until decode has loaded them, or for a minute.

The prefill side holds them by the hand-over's id once their saves are done; a decode engine at the same node ends the hold
after its load. Not here: the hold itself (`handover_hold.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mooncask.engine_adapter.handover_hold import KEYS_MAX, HandOverHold
from mooncask.engine_adapter.vllm.connection import StoreConnection

Background = Callable[[str, Callable[[], object]], object]
"""Runs a call whose answer nobody waits for."""


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
                hold = partial(self._hold_everywhere, ending.handover_id, ending.keys)
                self._background("holding a hand-over", hold)

    def _hold_everywhere(self, handover_id: str, keys: Sequence[bytes]) -> None:
        for handle in self._connection.handles:
            self._hold.hold(handle.name, handover_id, keys)

    def _end_everywhere(self, handover_id: str) -> None:
        for handle in self._connection.handles:
            self._hold.end(handle.name, handover_id)
