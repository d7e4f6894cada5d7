"""A lease ends with the last view of its block, whoever holds that view and wherever it dies."""

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mooncask.client.blocks import Block, Blocks, Slot
from mooncask.client.leases import LeaseBook, LeaseRef, Outbox, lease_died, this_process
from mooncask.errors import BadRequest


class Owner:
    """What an arena's bytes belong to: not an array, as the mapping is not."""

    def __init__(self, size: int) -> None:
        self.memory = np.arange(size, dtype=np.uint8)
        self.__array_interface__ = {**self.memory.__array_interface__}
        address, _ = self.__array_interface__["data"]
        self.__array_interface__["data"] = (address, True)


ARENA: npt.NDArray[np.uint8] = np.asarray(Owner(128))


def test_clients_of_one_process_take_from_one_book_at_the_same_time() -> None:
    book = LeaseBook()
    taken: list[list[tuple[int, int]]] = [[] for _ in range(4)]
    ending = threading.Event()
    faults: list[IndexError] = []

    def take(mine: list[tuple[int, int]]) -> None:
        try:
            while not ending.is_set() or book.pending or book.offered:
                mine += book.take_pending(3) + book.take_unadopted()
        except IndexError as exc:
            faults.append(exc)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
        for thread in threads:
            thread.start()
        for number in range(20_000):
            book.pending.append((number, 1))
            book.offered.append((0.0, -number - 1, 1))
        ending.set()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not faults
    assert sorted(lease for mine in taken for lease, _ in mine) == list(range(-20_000, 20_000))


def leased(book: LeaseBook, lease: int, generation: int = 1) -> Block:
    piece = ARENA[lease : lease + 8]
    ref = LeaseRef(piece, lease_died)
    ref.lease, ref.generation, ref.book = lease, generation, book
    book.live[lease] = ref
    return Block(b"k" * 16, piece, 8, 2, ref)


def test_a_lease_ends_when_its_block_dies() -> None:
    book = LeaseBook()
    block = leased(book, 5, generation=7)
    assert list(book.live) == [5] and not book.pending
    del block
    assert not book.live
    assert book.take_pending(10) == [(5, 7)]


def _tensor(block: Block) -> Any:
    torch = pytest.importorskip("torch")
    return block.torch(torch.uint8)[2:4]


VIEWS: dict[str, Callable[[Block], Any]] = {
    "memory": lambda block: block.memory,
    "slice": lambda block: block.memory[2:],
    "numpy": lambda block: block.numpy(np.uint8),
    "strided": lambda block: block.numpy(np.uint8, (2, 4))[:, ::2],
    "cast": lambda block: block.memory.cast("H"),
    "array of memory": lambda block: np.asarray(block.memory)[1:],
    "tensor": _tensor,
}


@pytest.mark.parametrize("take", VIEWS.values(), ids=VIEWS.keys())
def test_a_view_outlives_its_closed_block_and_keeps_the_lease(take: Callable[[Block], Any]) -> None:
    book = LeaseBook()
    block = leased(book, 3)
    view = take(block)
    expected = view.tolist()
    block.close()
    del block
    gc.collect()
    assert list(book.live) == [3] and not book.pending
    assert view.tolist() == expected
    del view
    assert book.take_pending(10) == [(3, 1)]


def test_a_block_that_was_closed_gives_no_views() -> None:
    block = leased(LeaseBook(), 1)
    block.close()
    for take in (lambda: block.memory, block.numpy):
        with pytest.raises(BadRequest, match="closed"):
            take()


def test_views_that_die_in_another_thread_or_in_a_cycle_end_their_leases() -> None:
    book = LeaseBook()
    holder = [leased(book, 1)]
    thread = threading.Thread(target=holder.clear)
    thread.start()
    thread.join()
    cycle: list[object] = [leased(book, 2)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert book.take_pending(10) == [(1, 1), (2, 1)]


def test_bytes_that_do_not_fit_dtype_and_shape_are_refused() -> None:
    block = leased(LeaseBook(), 1)
    with pytest.raises(BadRequest, match="8 bytes"):
        block.numpy(np.float32, (3,))
    torch = pytest.importorskip("torch")
    with pytest.raises(BadRequest, match="8 bytes"):
        block.torch(torch.float32, (3,))


def test_leaving_the_with_statement_closes_all_blocks() -> None:
    book = LeaseBook()
    with Blocks([leased(book, 1), None, leased(book, 2)], book) as blocks:
        assert blocks.prefix == 1
        last = blocks[2]
        assert last is not None
        kept = last.memory
        del last
    assert book.take_pending(10) == [(1, 1)]
    del kept
    assert book.take_pending(10) == [(2, 1)]


def test_blocks_that_were_handed_over_are_not_released_before_the_offer_is_over() -> None:
    book = LeaseBook()
    blocks = Blocks([leased(book, 1)], book, token=b"t")
    assert blocks.hand_over() == b"t"
    assert not book.live and not book.pending
    assert book.take_unadopted() == []
    assert [lease for _, lease, _ in book.offered] == [1]


def test_a_lease_that_this_process_adopted_itself_is_not_released_when_its_offer_is_over() -> None:
    book = LeaseBook()
    blocks = Blocks([leased(book, 1), leased(book, 2)], book, token=b"t")
    blocks.hand_over()
    book.offered = type(book.offered)((0.0, lease, generation) for _, lease, generation in book.offered)
    adopted = leased(book, 2)
    assert book.take_unadopted() == [(1, 1)]
    del adopted
    assert book.take_pending(10) == [(2, 1)]


def test_blocks_without_a_token_cannot_be_handed_over() -> None:
    with pytest.raises(BadRequest, match="want_token"):
        Blocks([], LeaseBook()).hand_over()


def test_another_start_of_the_daemon_voids_leases_and_leaves_views_alone() -> None:
    book = LeaseBook()
    book.met(b"first")
    block, slot_array = leased(book, 9), ARENA[:4]
    book.watch_slot(slot_array, 11, 1, Outbox())
    book.met(b"first")
    assert book.named_in_hello() == [9, 11]
    book.met(b"second")
    assert book.named_in_hello() == []
    view = block.memory
    del block, slot_array
    assert view.tolist() == list(range(9, 17))
    del view
    assert not book.pending and not book.parked.aborts


def test_a_slot_is_given_back_when_its_last_view_dies_and_not_when_it_was_settled() -> None:
    book, outbox = LeaseBook(), Outbox()
    slots = []
    for reservation in (1, 2):
        array = np.zeros(8, np.uint8)
        book.watch_slot(array, reservation, 5, outbox)
        slots.append(Slot(b"k" * 16, array, reservation, 5, book))
        del array
    view = slots[0].numpy()
    slots[0].close()
    slots[1].settle()
    assert not outbox.aborts
    del view
    assert outbox.take(10) == [(1, 5)]
    with pytest.raises(BadRequest, match="committed or aborted"):
        _ = slots[0].memory


def test_a_slot_whose_connection_is_gone_is_given_back_by_any_other() -> None:
    book, outbox = LeaseBook(), Outbox()
    array = np.zeros(8, np.uint8)
    book.watch_slot(array, 1, 5, outbox)
    outbox.open = False
    assert book.named_in_hello() == [1]
    del array
    assert not outbox.aborts
    assert book.named_in_hello() == [1], "the daemon keeps the place until it is aborted"
    assert book.parked.take(10) == [(1, 5)]


def test_a_process_has_one_token_and_one_book_a_socket() -> None:
    process = this_process()
    assert this_process() is process
    assert len(process.token) == 16
    assert process.book("/tmp/a") is process.book("/tmp/../tmp/a")
    assert process.book("/tmp/a") is not process.book("/tmp/b")
