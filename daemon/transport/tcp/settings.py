"""Times and bounds of links over TCP; tests use shorter ones."""

from dataclasses import dataclass

from mooncask.daemon.transport.served_leases import LeaseLimits


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Of the side that asks."""

    connections: int = 4
    connect_seconds: float = 5.0
    keepalive_seconds: float = 2.0
    silence_seconds: float = 10.0
    """A link over which nothing came for so long is dead."""
    idle_seconds: float = 60.0
    """A data connection that was not used for so long is closed; the next read makes another."""
    requests_max: int = 1024
    """Under way at a time."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Of the side that answers."""

    leases: LeaseLimits
    lease_seconds_max: float = 300.0
    """A link that keeps a lease for longer is ended."""
    handshake_seconds: float = 5.0
    silence_seconds: float = 10.0
    links_max: int = 256
    links_of_a_peer_max: int = 4
    connections_of_a_link_max: int = 16
    handshakes_max: int = 64
    requests_max: int = 256
    """Of one link, under way at a time."""
