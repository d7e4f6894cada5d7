"""What goes wrong between two nodes."""

import errno as _errno

from mooncask.errors.base import MooncaskError


class PeerUnavailable(MooncaskError):
    """No answer from that node; what it holds is a miss here."""

    code, http_status, errno, exit_code = "ServiceUnavailable", 503, _errno.ENOTCONN, 69

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(f'peer {peer}: {why}; go on without it, "mooncask peers" shows the state of each')
        self.peer, self.why = peer, why


class PeerChanged(PeerUnavailable):
    """Behind the address is another run of the node, or another node: what the old one held is to be looked up anew."""

    def __init__(self, peer: str, expected: str, found: str) -> None:
        super().__init__(peer, f"is incarnation {found}, not {expected}")
        self.expected, self.found = expected, found
