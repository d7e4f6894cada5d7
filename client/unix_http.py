"""HTTP over a Unix socket, for `http.client`. Not here: what is asked (`http.py`, `control_client.py`)."""

import http.client
import select
import socket


class UnixConnection(http.client.HTTPConnection):
    """As over TCP, but to a socket's path. `timeout`, in seconds, is for connecting and for each step after it; None waits."""

    def __init__(self, path: str, timeout: float | None = None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.settimeout(self.timeout)
            sock.connect(self._path)
        except BaseException:
            sock.close()
            raise
        self.sock = sock

    def drop_if_ended(self) -> None:
        """An idle connection on which something can be read was ended by the daemon, or it is another daemon by now."""
        if self.sock is not None and select.select([self.sock], [], [], 0)[0]:
            self.close()
