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

    keys: Sequence[bytes]
    saving: dict[int, int]


class HandOverHolds:
    """For the scheduler's thread; calls to the daemon run in the background."""

    def __init__(self, connection: StoreConnection, background: Background) -> None:
        self._connection, self._background = connection, background
        self._hold = HandOverHold(connection.settings.socket, connection.settings.deadline_seconds)
        self._ending: dict[str, _Ending] = {}

    def handed_over(self, handover_id: str, keys: Sequence[bytes], saving: Mapping[int, int]) -> None:
        """They are held as soon as `saving` is done."""
        if keys:
            self._ending[handover_id] = _Ending(keys[:KEYS_MAX], dict(saving))
            self._hold_what_is_saved()

    def saved(self, numbers: Mapping[int, int]) -> None:
        """Workers are done with these saves."""
        for ending in self._ending.values():
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
        for handover_id in [name for name, ending in self._ending.items() if not ending.saving]:
            keys = self._ending.pop(handover_id).keys
            self._background("holding a hand-over", partial(self._hold_everywhere, handover_id, keys))

    def _hold_everywhere(self, handover_id: str, keys: Sequence[bytes]) -> None:
        for handle in self._connection.handles:
            self._hold.hold(handle.name, handover_id, keys)

    def _end_everywhere(self, handover_id: str) -> None:
        for handle in self._connection.handles:
            self._hold.end(handle.name, handover_id)
