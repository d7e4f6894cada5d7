"""Blocks that a prefill engine handed over stay where they are until decode has loaded them, or for a minute.

The prefill side holds them by the hand-over's id once their saves are done; a decode engine at the same node ends the hold
after its load. At another node nobody can, and the time does. A hold that fails costs nothing but the promise: what was
evicted is computed. Not here: how the daemon holds (docs/HTTP.md, POST /-/v1/hold).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mooncask.client.control_client import ControlClient
from mooncask.client.hold import HoldRequest
from mooncask.engine_adapter.vllm.connection import StoreConnection
from mooncask.errors import MooncaskError

log = logging.getLogger(__name__)

HOLD_SECONDS = 60.0
SHARE = 0.5
"""Of what may be pinned at all."""
KEYS_MAX = 16_384
ID_CHARACTERS_MAX = 64

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
        self._control = ControlClient(connection.settings.socket, connection.settings.deadline_seconds)
        self._ending: dict[str, _Ending] = {}
        self._said = False

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
        if 0 < len(handover_id) <= ID_CHARACTERS_MAX:
            self._background("ending a hand-over's hold", partial(self._ask, handover_id, (), 0.0))

    def close(self) -> None:
        self._control.close()

    def _hold_what_is_saved(self) -> None:
        for handover_id in [name for name, ending in self._ending.items() if not ending.saving]:
            keys = self._ending.pop(handover_id).keys
            self._background("holding a hand-over", partial(self._ask, handover_id, keys, HOLD_SECONDS))

    def _ask(self, handover_id: str, keys: Sequence[bytes], seconds: float) -> None:
        """A fault is said once, and says nothing about the socket on which blocks come and go."""
        try:
            for handle in self._connection.handles:
                name, named = f"handover {handover_id} {handle.name}", tuple(key.hex() for key in keys)
                self._control.hold(
                    HoldRequest(namespace=handle.name, name=name, keys=named, seconds=seconds, share=SHARE)
                )
        except MooncaskError as error:
            if not self._said:
                log.warning("blocks of hand-overs may be evicted before decode has them: %s", error)
            self._said = True
