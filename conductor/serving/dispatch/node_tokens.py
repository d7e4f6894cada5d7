"""What the Conductor shows to the daemons of nodes that demand it: their `http.admin_token`, by the node's name.

A daemon on a Unix socket knows its caller from the kernel and is shown nothing. Nothing here is logged.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from mooncask.client.http import UNIX

REFUSED = (401, 403)
"""Statuses of a daemon that wants a token, or another one, or whose namespace belongs to another tenant."""
_MESSAGE = re.compile(r'<Message>([^<]*)|"message": ?"([^"]*)')


@dataclass(frozen=True, slots=True)
class NodeTokens:
    """`by_node`: of the nodes that have one of their own, empty for none; `default`: of all others."""

    by_node: Mapping[str, str] = field(default_factory=dict, repr=False)
    default: str = field(default="", repr=False)

    def headers(self, node: str, pages: str) -> dict[str, str]:
        token = self.by_node.get(node, self.default)
        return {"Authorization": f"Bearer {token}"} if token and not pages.startswith(UNIX) else {}


def refusal(node: str, body: bytes) -> str:
    """For whoever runs the Conductor: what a node's daemon said with one of `REFUSED`, and where its token is told."""
    found = _MESSAGE.search(body[:2000].decode(errors="replace"))
    said = (found[1] or found[2] or "") if found is not None else ""
    return f"node {node} refuses this Conductor: {said or 'no reason given'} ([nodes.{node}] admin_token is what it is shown)"
