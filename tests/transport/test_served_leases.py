"""What a peer holds here: dropped exactly once, never while it is sent, and bounded."""

import pytest

from mooncask.daemon.transport.messages import ReadPieces
from mooncask.daemon.transport.served_leases import LeaseLimits, ServedLeases
from mooncask.daemon.transport.transport import HeldBlock
from mooncask.errors import Busy, OutOfBounds, PeerUnavailable, UnknownLease
from mooncask.tiers.block import Extent, TierName


class Holder:
    """Leases of up to 3 blocks and 100 bytes; `dropped` and `dropped_soon` are the keys in their order."""

    def __init__(self) -> None:
        self.dropped: list[bytes] = []
        self.dropped_soon: list[bytes] = []
        self.leases = ServedLeases(
            LeaseLimits(3, 100),
            lambda held: self.dropped.append(held.key),
            lambda held: self.dropped_soon.append(held.key),
        )

    def grant(self, number: int, size: int = 10, now_seconds: float = 0.0) -> None:
        payload = memoryview(bytes(range(size)))
        held = HeldBlock(b"%d" % number, Extent(TierName.DRAM, 0, 4096, 1, size), payload, b"c" * 16)
        self.leases.grant([number], [held], now_seconds)


@pytest.fixture
def holder() -> Holder:
    return Holder()


def test_what_is_released_is_dropped_once(holder: Holder) -> None:
    holder.grant(1)
    holder.leases.release([1, 1, 2])
    holder.leases.release([1])
    holder.leases.end()
    assert holder.dropped == [b"1"] and len(holder.leases) == 0 and holder.leases.leased_bytes == 0


def test_a_released_block_that_is_being_sent_is_dropped_when_it_was_sent(holder: Holder) -> None:
    holder.grant(1)
    sending, again = holder.leases.begin(ReadPieces([1], [2], [3])), holder.leases.begin(ReadPieces([1], [0], [1]))
    assert [bytes(view) for view in sending.views] == [bytes([2, 3, 4])]
    holder.leases.release([1])
    with pytest.raises(UnknownLease):
        holder.leases.begin(ReadPieces([1], [0], [1]))
    sending.end()
    assert holder.dropped == [] == holder.dropped_soon
    again.end()
    assert holder.dropped == [] and holder.dropped_soon == [b"1"]


def test_the_end_of_a_link_drops_what_is_not_being_sent_and_takes_no_more(holder: Holder) -> None:
    holder.grant(1)
    holder.grant(2)
    sending = holder.leases.begin(ReadPieces([1, 1], [0, 5], [5, 5]))
    holder.leases.end()
    assert holder.dropped == [b"2"]
    with pytest.raises(PeerUnavailable):
        holder.grant(3)
    sending.end()
    assert holder.dropped_soon == [b"1"]


def test_a_read_is_all_or_nothing(holder: Holder) -> None:
    holder.grant(1)
    for wrong, error in ((ReadPieces([1, 9], [0, 0], [1, 1]), UnknownLease), (ReadPieces([1], [5], [6]), OutOfBounds)):
        with pytest.raises(error):
            holder.leases.begin(wrong)
    holder.leases.release([1])
    assert holder.dropped == [b"1"], "no half-begun read keeps it"


def test_leases_and_their_bytes_are_bounded(holder: Holder) -> None:
    holder.grant(1, 60)
    with pytest.raises(Busy):
        holder.grant(2, 41)
    holder.grant(2, 40)
    holder.leases.check_room(1)
    with pytest.raises(Busy):
        holder.leases.check_room(2)
    holder.leases.release([1])
    holder.grant(3, 60)


def test_the_oldest_lease_tells_its_age(holder: Holder) -> None:
    assert holder.leases.oldest_seconds() is None
    holder.grant(1, now_seconds=5.0)
    holder.grant(2, now_seconds=7.0)
    assert holder.leases.oldest_seconds() == 5.0
    holder.leases.release([1])
    assert holder.leases.oldest_seconds() == 7.0
