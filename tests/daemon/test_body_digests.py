"""Running digests: equal to the digests of the whole whatever comes in which pieces, bounded, and safe to give up."""

import asyncio
import hashlib
import threading
import zlib

import pytest
from awscrt import checksums
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from mooncask.daemon.http.bodies.body_promises import promised_trailers, promises_of
from mooncask.daemon.http.bodies.ordered_work import BATCH_BYTES, QUEUED_BYTES_MAX, OrderedWork
from mooncask.daemon.http.bodies.running_digests import DIGESTS, RunningDigests, missing_digests
from mooncask.daemon.http.refused import Refused


def of_the_whole(data: bytes) -> dict[str, bytes]:
    return {
        "md5": hashlib.md5(data).digest(),
        "sha1": hashlib.sha1(data).digest(),
        "sha256": hashlib.sha256(data).digest(),
        "crc32": zlib.crc32(data).to_bytes(4, "big"),
        "crc32c": checksums.crc32c(data).to_bytes(4, "big"),
        "crc64nvme": checksums.crc64nvme(data).to_bytes(8, "big"),
    }


@pytest.mark.parametrize("piece_bytes", [1 << 10, 100_000, 1 << 20, 3 << 20])
async def test_digests_of_pieces_are_those_of_the_whole(piece_bytes: int) -> None:
    data = bytes(range(251)) * 12_000
    digests = RunningDigests(DIGESTS)
    for at in range(0, len(data), piece_bytes):
        await digests.feed(memoryview(data)[at : at + piece_bytes])
    assert await digests.finish() == of_the_whole(data)


@given(st.lists(st.binary(max_size=100), max_size=10))
def test_digests_of_little_are_right_as_well(pieces: list[bytes]) -> None:
    async def digest() -> dict[str, bytes]:
        digests = RunningDigests(DIGESTS)
        for piece in pieces:
            await digests.feed(memoryview(piece))
        return await digests.finish()

    assert asyncio.run(digest()) == of_the_whole(b"".join(pieces))


def test_published_check_values_of_the_crcs() -> None:
    """CRC-32/ISO-HDLC, CRC-32/ISCSI and CRC-64/NVME of "123456789", from the catalogue of CRC algorithms."""

    async def digest() -> dict[str, bytes]:
        digests = RunningDigests(["crc32", "crc32c", "crc64nvme"])
        await digests.feed(memoryview(b"123456789"))
        return await digests.finish()

    found = {name: value.hex() for name, value in asyncio.run(digest()).items()}
    assert found == {"crc32": "cbf43926", "crc32c": "e3069283", "crc64nvme": "ae8b14860a799888"}


async def test_no_digest_is_missing_where_the_extra_is_installed() -> None:
    assert missing_digests() == frozenset()


def test_a_checksum_that_this_installation_cannot_compute_is_refused_by_name() -> None:
    missing = frozenset({"crc32c", "crc64nvme"})
    for ask in (
        lambda: promises_of(CIMultiDict({"x-amz-checksum-crc32c": "AAAAAA=="}), missing),
        lambda: promised_trailers(CIMultiDict({"x-amz-trailer": "x-amz-checksum-crc64nvme"}), missing),
    ):
        with pytest.raises(Refused, match=r"x-amz-checksum-crc.*mooncask\[s3\]") as caught:
            ask()
        assert (caught.value.status, caught.value.code) == (501, "NotImplemented")
    assert promises_of(CIMultiDict({"x-amz-checksum-crc32": "AAAAAA=="}), missing)


class Held:
    """Work that stands still until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.done: list[int] = []

    def work(self, items: list[int]) -> None:
        self.begun.set()
        assert self.go_on.wait(10)
        self.done += items


async def test_whoever_feeds_too_fast_is_made_to_wait() -> None:
    held = Held()
    work = OrderedWork(held.work)
    for number in range(QUEUED_BYTES_MAX // BATCH_BYTES + 1):
        work.add(number, BATCH_BYTES)
    waiting = asyncio.create_task(work.room())
    await asyncio.to_thread(held.begun.wait, 10)
    assert not waiting.done()
    held.go_on.set()
    await waiting
    await work.finish()
    assert held.done == list(range(QUEUED_BYTES_MAX // BATCH_BYTES + 1))


async def test_memory_is_free_again_when_cancel_returns() -> None:
    held = Held()
    work = OrderedWork(held.work)
    work.add(1, BATCH_BYTES)
    await asyncio.to_thread(held.begun.wait, 10)
    work.add(2, BATCH_BYTES)
    cancelling = asyncio.create_task(work.cancel())
    await asyncio.sleep(0)
    assert not cancelling.done()
    held.go_on.set()
    await cancelling
    assert held.done == [1] and work.queued_bytes == 0


async def test_a_cancelled_wait_leaves_the_batch_with_its_thread() -> None:
    held = Held()
    work = OrderedWork(held.work)
    work.add(1, BATCH_BYTES)
    finishing = asyncio.create_task(work.finish())
    await asyncio.to_thread(held.begun.wait, 10)
    finishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    assert work.queued_bytes == BATCH_BYTES and held.done == []
    held.go_on.set()
    await work.finish()
    assert held.done == [1]


async def test_what_goes_wrong_in_the_thread_is_said_at_the_end() -> None:
    def fail(items: list[int]) -> None:
        raise ZeroDivisionError(str(items))

    work = OrderedWork(fail)
    work.add(1, BATCH_BYTES)
    with pytest.raises(ZeroDivisionError):
        await work.finish()
