"""What the daemon can tell of itself beyond counters: one object that holds what is remembered and answers the JSON pages.

Everything belongs to the event loop's thread. Bounded: each part names its own limit. Not here: how a page is asked for
(`daemon/http/pages.py`) and what its fields mean (`client/control.py`).
"""

from typing import TYPE_CHECKING

from mooncask.daemon.insight.chains import Chains
from mooncask.daemon.insight.tree import PrefixTrees

if TYPE_CHECKING:
    from mooncask.daemon.session import LocalPlane


class Insight:
    """Of one daemon; made with its `LocalPlane`."""

    def __init__(self, plane: "LocalPlane") -> None:
        self._plane = plane
        self._service = plane.service
        store = plane.service.store
        self.trees = PrefixTrees(store.catalogue)
        self.chains = Chains(store, self.trees)
        self.config_file = ""
        """Where the configuration was read from, empty when from nowhere; `main.py` knows."""
