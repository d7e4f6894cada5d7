"""Which port and which GID: pure decisions over what the verbs say of their devices (`verbs.py`).

A GID table has an entry for each address of the network interface and each version of RoCE. Only RoCE v2 is routed, and the entry
that holds the IPv4 address (::ffff:a.b.c.d) is the one that two hosts of one network have in common; its index differs from host to
host and changes with the interface's addresses.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

ETHERNET, INFINIBAND = "ethernet", "infiniband"


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of a port's table. `address` is an IPv6 address in any spelling."""

    index: int
    address: str
    roce_v2: bool


@dataclass(frozen=True, slots=True)
class Port:
    """One port of one device."""

    device: str
    number: int
    active: bool
    link_layer: str
    """ETHERNET or INFINIBAND."""
    gids: tuple[Gid, ...]
    lid: int
    """What InfiniBand's subnet manager gave it; 0 on Ethernet."""
    mtu: int
    """Of a path, in the verbs' own numbers: the lesser of both ends' holds."""
    message_bytes_max: int
    reads_max: int
    """Reads under way at a time that the device answers and begins."""


@dataclass(frozen=True, slots=True)
class Place:
    """A port, and the entry of its GID table to use."""

    port: Port
    gid: Gid


def choose_place(ports: Sequence[Port], host: str) -> Place | None:
    """The port whose address is `host` (where other nodes reach this one), else the first that is active and has a usable GID."""
    places = [Place(port, gid) for port in ports if port.active and (gid := choose_gid(port, host)) is not None]
    return min(places, key=lambda place: not is_host(place.gid, host), default=None)


def choose_gid(port: Port, host: str) -> Gid | None:
    """IPv4 before other IPv6 addresses before link-local ones; of InfiniBand the port's own."""
    if port.link_layer == INFINIBAND:
        return min(port.gids, key=lambda gid: gid.index, default=None)
    usable = [gid for gid in port.gids if gid.roce_v2]
    return min(usable, key=lambda gid: (not is_host(gid, host), _rank(gid), gid.index), default=None)


def _rank(gid: Gid) -> int:
    address = ipaddress.IPv6Address(gid.address)
    if address.ipv4_mapped is not None:
        return 0
    return 2 if address.is_link_local else 1


def is_host(gid: Gid, host: str) -> bool:
    address = ipaddress.IPv6Address(gid.address)
    try:
        return ipaddress.ip_address(host) in (address, address.ipv4_mapped)
    except ValueError:
        return False  # a name: its address is not worth a look-up here


def why_apart(ours: str, our_address: str, theirs: str, their_address: str) -> str:
    """Why two ends (link layer and GID of each) cannot be of one fabric; empty if they may be, which a probe then proves."""
    if ours != theirs:
        return f"one end is on {ours} and the other on {theirs}"
    if ours == ETHERNET and _is_ipv4(our_address) != _is_ipv4(their_address):
        return f"one end has {our_address} and the other {their_address}: no common address family"
    return ""


def _is_ipv4(address: str) -> bool:
    return ipaddress.IPv6Address(address).ipv4_mapped is not None
