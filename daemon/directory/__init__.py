"""Where blocks are among nodes: see `directory.py`; the one that the configuration asks for is made here."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from mooncask.daemon.config import Config
from mooncask.daemon.directory.directory import Directory, NodeRecord
from mooncask.daemon.directory.static import StaticDirectory
from mooncask.daemon.transport.endpoint import Endpoint


def open_directory(
    config: Config,
    endpoint: Endpoint,
    held: Callable[[], Iterator[tuple[bytes, Sequence[bytes]]]],
    record: Callable[[Endpoint], NodeRecord],
    counters: Counter[str],
) -> Directory:
    """`held` gives all that this node has, in slices of (namespace id, keys); `record` describes this node as it is now.

    Raises ConfigError when the package for a server is not installed.
    """
    if config.cluster.directory:
        from mooncask.daemon.directory.valkey_client import open_valkey_directory

        return open_valkey_directory(config.cluster, lambda: record(endpoint), held, counters)
    return StaticDirectory(config.cluster.peers, endpoint.pool, endpoint.identity.incarnation)
