"""Stripes: every byte in exactly one piece, whatever the sizes, and no connection has much more than another."""

from hypothesis import given
from hypothesis import strategies as st

from mooncask.daemon.transport.pieces import STRIPE_BYTES_MAX, STRIPE_PIECES_MAX, cut_stripes

SIZES = st.lists(st.one_of(st.integers(0, 5000), st.integers(0, 40 << 20)), max_size=40)


@given(SIZES, st.integers(1, 16))
def test_every_byte_of_every_item_is_in_exactly_one_piece(sizes: list[int], connections: int) -> None:
    reached = [0] * len(sizes)
    for piece in (piece for stripe in cut_stripes(sizes, connections) for piece in stripe):
        assert piece.length > 0 and piece.start == reached[piece.index], "in order, so nothing twice and no gap"
        reached[piece.index] += piece.length
    assert reached == sizes


@given(SIZES, st.integers(1, 16))
def test_no_stripe_is_long_and_none_is_empty(sizes: list[int], connections: int) -> None:
    stripes = cut_stripes(sizes, connections)
    lengths = [sum(piece.length for piece in stripe) for stripe in stripes]
    assert all(0 < length <= STRIPE_BYTES_MAX + (128 << 10) for length in lengths)
    assert max(map(len, stripes), default=0) <= STRIPE_PIECES_MAX


def test_a_batch_of_32_times_2_mib_is_shared_out_evenly_over_four_connections() -> None:
    stripes = cut_stripes([2 << 20] * 32, 4)
    assert [sum(piece.length for piece in stripe) for stripe in stripes] == [16 << 20] * 4


def test_one_large_block_is_shared_out_and_a_small_one_is_not() -> None:
    assert len(cut_stripes([16 << 20], 4)) == 4
    assert len(cut_stripes([900_000], 4)) == 1
    assert cut_stripes([], 4) == [] == cut_stripes([0, 0], 4)


def test_many_small_blocks_go_in_requests_of_bounded_length() -> None:
    assert [len(stripe) for stripe in cut_stripes([1] * 2500, 4)] == [1024, 1024, 452]
