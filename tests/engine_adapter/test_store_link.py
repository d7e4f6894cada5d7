"""A worker's way to the store, alone with a real daemon: what is loaded and stored, and what a fault costs."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

from collections.abc import Iterator
from pathlib import Path

import torch
from daemon_process import DaemonProcess

from mooncask.client.local import LocalClient
from mooncask.engine_adapter.transformers.kv_layout import KvBuffer, KvLayout
from mooncask.engine_adapter.transformers.store_link import WINDOW_BYTES, StoreAddress, StoreLink
from mooncask.errors import DeadlineExceeded

MIB = 1 << 20
FAMILY = {"model": "of tests"}
LAYOUT = KvLayout(layers=2, kv_heads=2, head_dim=64, block_tokens=1024, dtype="float32")
TOKENS = list(range(40 * LAYOUT.block_tokens))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    settings = {"dram.capacity": "128 MiB", "nvme.path": ""}
    with DaemonProcess.start(tmp_path_factory.mktemp("store"), settings) as daemon:
        yield daemon


@pytest.fixture
def link(daemon: DaemonProcess) -> Iterator[StoreLink]:
    link = StoreLink(StoreAddress(daemon.socket_path, deadline_seconds=1.0), "tests", FAMILY, LAYOUT)
    yield link
    link.close()


def filled_buffer(blocks: int) -> KvBuffer:
    buffer = KvBuffer(LAYOUT, blocks * LAYOUT.block_tokens)
    buffer.storage.normal_(generator=torch.Generator().manual_seed(3))
    return buffer


def test_a_prefix_of_more_than_one_window_comes_back_whole(link: StoreLink) -> None:
    assert 40 * LAYOUT.block_bytes > WINDOW_BYTES
    session, source, target = link.session(), filled_buffer(40), KvBuffer(LAYOUT, len(TOKENS))
    keys = session.keys(TOKENS, "windows")
    assert session.store(keys, range(40), source) == 40
    outcome = session.load(keys, target, deadline_seconds=5)
    assert outcome.blocks == 40
    assert outcome.tokens(LAYOUT).dram == len(TOKENS)
    assert torch.equal(source.storage, target.storage)
    assert not session.faults


def test_a_block_that_went_after_it_was_matched_ends_what_is_loaded(link: StoreLink) -> None:
    session, source, target = link.session(), filled_buffer(4), KvBuffer(LAYOUT, 4 * LAYOUT.block_tokens)
    keys = session.keys(TOKENS, "hole")[:4]
    session.store(keys, range(4), source)
    assert len(session.match(keys)) == 4
    client, namespace = link.connect()
    client.evict(namespace, keys[2:3])
    outcome = session.load(keys, target, deadline_seconds=5)
    assert outcome.blocks == 2
    assert torch.equal(source.storage[:, :, :, :2048], target.storage[:, :, :, :2048])
    assert not target.storage[:, :, :, 2048:].any(), "block 3, which is there, is not taken for block 2"


def test_a_call_that_fails_while_layers_are_stored_leaves_no_block_without_the_others(link: StoreLink) -> None:
    """As the reservation for the next chunk may, in its own thread: the worker was frozen for longer than its deadline."""
    session, source, target = link.session(), filled_buffer(2), KvBuffer(LAYOUT, 2 * LAYOUT.block_tokens)
    keys = session.keys(TOKENS, "half")[:2]
    chunk = session.begin_chunk(keys, range(2), source)
    assert chunk is not None
    session.advance(chunk, 0)
    session.fault(DeadlineExceeded("reserve", 1.0))
    assert not session.usable
    session.advance(chunk, 1)
    session.commit(chunk)
    assert link.session().load(keys, target, deadline_seconds=5).blocks == 2
    assert torch.equal(source.storage, target.storage)


def test_a_chunk_of_which_a_layer_is_missing_is_not_published(link: StoreLink) -> None:
    session, source = link.session(), filled_buffer(2)
    keys = session.keys(TOKENS, "missing")[:2]
    chunk = session.begin_chunk(keys, range(2), source)
    assert chunk is not None
    session.advance(chunk, 0)
    with pytest.raises(ValueError, match=r"layers \[1\]"):
        session.commit(chunk)
    assert not session.match(keys)


def test_what_is_stored_already_is_not_counted_as_published(link: StoreLink) -> None:
    session, source = link.session(), filled_buffer(4)
    keys = session.keys(TOKENS, "twice")[:4]
    assert session.store(keys, range(2), source) == 2
    assert session.store(keys, range(4), source) == 2


def test_a_store_without_room_costs_the_reservation_and_nothing_else(daemon: DaemonProcess, link: StoreLink) -> None:
    session, source = link.session(), filled_buffer(4)
    keys = session.keys(TOKENS, "full")[:4]
    session.store(keys, range(4), source)
    with LocalClient.connect(daemon.socket_path, populate=False) as other:
        namespace = other.open_namespace(family=FAMILY)
        held = other.reserve(namespace, [bytes([i]) * 16 for i in range(8)], [11 * MIB] * 8, deadline_seconds=5)
        assert session.begin_chunk([b"x" * 16, b"y" * 16], range(2), source) is None
        held.abort()
    assert sum(session.faults.values()) == 1
    assert session.usable
    assert session.load(keys[:1], KvBuffer(LAYOUT, 1024), deadline_seconds=5).seconds > 0


def test_a_session_that_is_not_to_use_the_store_asks_it_nothing(tmp_path: Path) -> None:
    session = StoreLink(StoreAddress(str(tmp_path / "nobody")), "tests", FAMILY, LAYOUT).session(wanted=False)
    assert session.keys(TOKENS, "") == []
    assert not session.faults


def test_a_session_tells_the_daemon_how_much_its_request_matters(link: StoreLink) -> None:
    session, source, target = link.session(priority=7), filled_buffer(2), KvBuffer(LAYOUT, 2 * LAYOUT.block_tokens)
    keys = session.keys(TOKENS, "priority")[:2]
    assert session.store(keys, range(2), source) == 2
    assert session.load(keys, target, deadline_seconds=5).blocks == 2
    assert not session.faults
    beyond = link.session(priority=256)
    assert beyond.store(beyond.keys(TOKENS, "beyond")[:2], range(2), source) == 0
    assert set(beyond.faults) == {"BadRequest"}, "the daemon has read the hint"


def test_places_that_were_prepared_are_those_that_the_chunk_gets(link: StoreLink) -> None:
    session, source = link.session(), filled_buffer(4)
    keys = session.keys(TOKENS, "prepared")[:4]
    session.prepare_chunk(keys, range(2), source)
    chunk = session.begin_chunk(keys, range(2), source)
    assert chunk is not None
    chunk.save_all()
    assert session.commit(chunk) == 2
    assert len(session.match(keys)) == 2


def test_places_that_nobody_asks_for_go_back(daemon: DaemonProcess, link: StoreLink) -> None:
    session, source = link.session(), filled_buffer(4)
    keys = session.keys(TOKENS, "prepared in vain")[:4]
    session.prepare_chunk(keys, range(2), source)
    other = session.begin_chunk(keys, range(2, 4), source)  # as when the request is cut differently
    assert other is not None
    other.save_all()
    assert session.commit(other) == 2
    chunk = session.begin_chunk(keys, range(2), source)
    assert chunk is not None
    chunk.save_all()
    assert session.commit(chunk) == 2, "nobody else has these places any more"
    assert len(session.match(keys)) == 4
