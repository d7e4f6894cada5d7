"""Blocks that prefill handed over stay at their node until decode there has loaded them, or for a minute.

A hold has the hand-over's name. Prefill makes it; decode at the same node ends it; at another node nobody can, and the time does.
One that fails costs nothing but the promise: what was evicted is computed. Not here: how the daemon holds (docs/HTTP.md, POST
/-/v1/hold), and when each engine hands over.
"""

import logging
from collections.abc import Sequence

from mooncask.client.control_client import ControlClient
from mooncask.client.hold import HAND_OVER_SECONDS, HoldRequest
from mooncask.errors import MooncaskError

log = logging.getLogger(__name__)

SHARE = 0.5
"""Of what may be pinned at all."""
KEYS_MAX = 16_384
ID_CHARACTERS_MAX = 64


class HandOverHold:
    """A way to one daemon's holds. Threads may share it. No method raises for what the daemon can't do: it is said once."""

    def __init__(self, socket: str, deadline_seconds: float) -> None:
        self._control = ControlClient(socket, deadline_seconds)
        self._said = False

    def hold(
        self,
        namespace: str,
        handover_id: str,
        keys: Sequence[bytes],
        seconds: float = HAND_OVER_SECONDS,
        renew: bool = False,
    ) -> None:
        """These blocks, of those that are there, in place of what it held before; `renew`: unless it was ended meanwhile."""
        if 0 < len(handover_id) <= ID_CHARACTERS_MAX:
            named = tuple(key.hex() for key in keys[:KEYS_MAX])
            name = f"handover {handover_id} {namespace}"
            self._ask(
                HoldRequest(namespace=namespace, name=name, keys=named, seconds=seconds, share=SHARE, renew=renew)
            )

    def end(self, namespace: str, handover_id: str) -> None:
        """Decode has them: nobody needs them held any more."""
        self.hold(namespace, handover_id, (), 0.0)

    def close(self) -> None:
        self._control.close()

    def _ask(self, request: HoldRequest) -> None:
        try:
            self._control.hold(request)
        except MooncaskError as error:
            if not self._said:
                log.warning("blocks of hand-overs may be evicted before decode has them: %s", error)
            self._said = True
