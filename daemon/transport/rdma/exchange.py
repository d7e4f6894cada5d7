"""What two ends tell each other before the first READ, as an `ask` of the link: docs/PEERS.md, "RDMA". Pure.

The reader offers its queue pair; the holder makes one for it, and answers with that, where its arena is, and where a nonce lies
that the reader fetches first: only a fabric that moved those bytes is used.
"""

import ipaddress
from typing import TypeVar

import msgspec

from mooncask.daemon.transport.rdma.regions import Region, Regions
from mooncask.errors import BadRequest

CONNECT = "rdma.connect"
VERSION = 1
NONCE_BYTES = 32
REGIONS_MAX = 1 << 14
"""16 TiB; a list of them is within an answer's bound."""
_24_BITS = (1 << 24) - 1


class End(msgspec.Struct, frozen=True, array_like=True):
    """One queue pair and the port that it is on."""

    link_layer: str
    gid: str
    lid: int
    mtu: int
    queue_pair: int
    packet: int
    """Number of its first packet."""
    reads: int
    """READs at a time."""


class Offer(msgspec.Struct, frozen=True, array_like=True):
    version: int
    end: End


class Acceptance(msgspec.Struct, frozen=True, array_like=True):
    end: End
    regions: list[Region]
    nonce: bytes
    nonce_address: int
    nonce_key: int


_T = TypeVar("_T")
_offers = msgspec.msgpack.Decoder(Offer)
_acceptances = msgspec.msgpack.Decoder(Acceptance)


def encode(message: Offer | Acceptance) -> bytes:
    return msgspec.msgpack.encode(message)


def parse_offer(payload: bytes) -> Offer:
    """Raises BadRequest."""
    offer = _parse(_offers, payload)
    if offer.version != VERSION:
        raise BadRequest(f"RDMA in version {offer.version}; this node speaks {VERSION}")
    _check_end(offer.end)
    return offer


def parse_acceptance(payload: bytes) -> Acceptance:
    """Raises BadRequest."""
    found = _parse(_acceptances, payload)
    _check_end(found.end)
    if len(found.nonce) != NONCE_BYTES or not 0 < len(found.regions) <= REGIONS_MAX:
        raise BadRequest(f"{len(found.regions)} regions and a nonce of {len(found.nonce)} bytes")
    regions_of(found)
    return found


def regions_of(acceptance: Acceptance) -> Regions:
    """Raises BadRequest."""
    try:
        return Regions(acceptance.regions)
    except ValueError as error:
        raise BadRequest(f"an arena that is none: {error}") from error


def _check_end(end: End) -> None:
    if not (0 <= end.queue_pair <= _24_BITS and 0 <= end.packet <= _24_BITS and 0 <= end.lid < 1 << 16):
        raise BadRequest("a queue pair whose numbers do not fit")
    try:
        ipaddress.IPv6Address(end.gid)
    except ValueError as error:
        raise BadRequest(f"a GID that is none: {error}") from error
    if not (1 <= end.mtu <= 5 and 1 <= end.reads <= 255):
        raise BadRequest(f"a queue pair with MTU {end.mtu} and {end.reads} reads at a time")


def _parse(decoder: "msgspec.msgpack.Decoder[_T]", payload: bytes) -> _T:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadRequest(f"a message about RDMA that is none: {error}") from error
