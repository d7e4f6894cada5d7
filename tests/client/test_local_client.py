"""The sync client against a real daemon: what it stores is what it reads, in place, for as long as it looks."""

import gc

import numpy as np
import pytest
import xxhash
from client_checks import keys_of, leases_on, payload_of, until

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.wire import CommitState, HintFields, NamespaceKind, Tier
from mooncask.errors import (
    BadRequest,
    BlockTooLarge,
    DigestMismatch,
    EmptyBlock,
    FamilyMismatch,
    LengthMismatch,
    NoSuchNamespace,
    OutOfBounds,
)

PUBLISHED, HAVE_IT, DURABLE = CommitState.PUBLISHED, CommitState.HAVE_IT, CommitState.DURABLE


def put(client: LocalClient, namespace: NamespaceHandle, keys: list[bytes], size: int = 10_000) -> list[bytes]:
    payloads = [payload_of(key, size) for key in keys]
    client.put(namespace, keys, payloads)
    return payloads


# --- there and back ---


def test_what_was_put_is_read_in_place(client: LocalClient, namespace: NamespaceHandle) -> None:
    keys = keys_of(5)
    payloads = [payload_of(key, 1000 * (i + 1)) for i, key in enumerate(keys)]
    assert client.put(namespace, keys, payloads) == [PUBLISHED] * 5
    with client.acquire(namespace, keys) as blocks:
        assert [bytes(block.memory) for block in blocks if block] == payloads
        assert [block.size for block in blocks if block] == [1000, 2000, 3000, 4000, 5000]
        assert {block.tier for block in blocks if block} == {Tier.DRAM}
        first = blocks[0]
        assert first is not None and first.memory.readonly
        same = client.acquire(namespace, keys[:1])[0]
        assert same is not None
        assert np.shares_memory(first.numpy(), same.numpy())


def test_what_is_not_there_is_none_and_not_an_error(client: LocalClient, namespace: NamespaceHandle) -> None:
    keys = keys_of(4)
    put(client, namespace, [keys[0], keys[2]])
    with client.acquire(namespace, keys) as blocks:
        assert [block is not None for block in blocks] == [True, False, True, False]
        assert blocks.prefix == 1


def test_arrays_and_tensors_go_in_and_come_out(client: LocalClient, namespace: NamespaceHandle) -> None:
    torch = pytest.importorskip("torch")
    keys = keys_of(2)
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    tensor = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6)
    client.put(namespace, keys, [array, tensor])
    blocks = client.acquire(namespace, keys)
    first, second = blocks
    assert first is not None and second is not None
    assert (first.numpy(np.float32, (2, 3, 4)) == array).all()
    assert torch.equal(second.torch(torch.bfloat16, (4, 6)), tensor)


def test_the_longest_prefix_is_matched(client: LocalClient, namespace: NamespaceHandle) -> None:
    keys = keys_of(6)
    put(client, namespace, [*keys[:3], keys[4]])
    found = client.match(namespace, keys)
    assert len(found) == 3
    assert found.tiers == [Tier.DRAM] * 3
    assert len(client.match(namespace, keys[3:])) == 0


def test_calls_without_keys_answer_without_anything(client: LocalClient, namespace: NamespaceHandle) -> None:
    assert len(client.match(namespace, [])) == 0
    assert len(client.acquire(namespace, [])) == 0
    assert client.put(namespace, [], []) == []
    assert client.get_into(namespace, [], []) == []
    assert client.stat(namespace, []) == []
    assert client.evict(namespace, []) == 0


def test_batches_longer_than_a_request_may_be_are_split(client: LocalClient, namespace: NamespaceHandle) -> None:
    keys = keys_of(3 * client.welcome.batch_max + 5)
    payloads = [payload_of(key, 100) for key in keys]
    assert client.put(namespace, keys, payloads) == [PUBLISHED] * len(keys)
    assert len(client.match(namespace, keys)) == len(keys)
    with client.acquire(namespace, [*keys, b"missing"]) as blocks:
        assert [bytes(block.memory) if block else None for block in blocks] == [*payloads, None]
    buffers = [bytearray(100) for _ in keys]
    assert client.get_into(namespace, keys, buffers) == [True] * len(keys)
    assert [bytes(buffer) for buffer in buffers] == payloads
    assert [stat.size if stat else 0 for stat in client.stat(namespace, keys)] == [100] * len(keys)
    assert client.pin(namespace, keys) == client.unpin(namespace, keys) == len(keys)
    assert client.evict(namespace, [*keys, b"missing"]) == len(keys)
    assert len(client.match(namespace, keys)) == 0


def test_a_copy_goes_into_any_buffer_that_is_long_enough(client: LocalClient, volatile: NamespaceHandle) -> None:
    keys = keys_of(3)
    payloads = put(client, volatile, keys[:2], 5000)
    longer, exact = bytearray(b"\xff" * 6000), np.zeros((50, 100), np.uint8)
    assert client.get_into(volatile, keys, [longer, exact, bytearray(1)]) == [True, True, False]
    assert bytes(longer) == payloads[0] + b"\xff" * 1000
    assert exact.tobytes() == payloads[1]
    assert leases_on(client, volatile, keys[0]) == 0
    with pytest.raises(OutOfBounds, match="4999"):
        client.get_into(volatile, keys[:1], [bytearray(4999)])
    with pytest.raises(BadRequest, match="read-only"):
        client.get_into(volatile, keys[:1], [b"x" * 5000])
    with pytest.raises(BadRequest, match="buffers"):
        client.get_into(volatile, keys, [])


def test_a_put_larger_than_what_it_commits_at_a_time_arrives_whole(
    client: LocalClient, namespace: NamespaceHandle
) -> None:
    keys = keys_of(5)
    payloads = put(client, namespace, keys, 5 << 20)
    with client.acquire(namespace, keys) as blocks:
        assert [bytes(block.memory) for block in blocks if block] == payloads


# --- writing ---


def test_reserved_places_are_written_in_place_and_published_by_commit(
    client: LocalClient, namespace: NamespaceHandle
) -> None:
    keys = keys_of(2)
    reservations = client.reserve(namespace, keys, [100, 200], parents=[b"", keys[0]], depths=[0, 1], tokens=[4, 4])
    for slot in reservations.to_write:
        slot.numpy()[:] = np.frombuffer(payload_of(slot.key, slot.size), np.uint8)
    assert len(client.match(namespace, keys)) == 0
    assert reservations.commit() == [PUBLISHED] * 2
    second = client.stat(namespace, keys)[1]
    assert second is not None
    assert (second.parent, second.depth, second.tokens) == (keys[0], 1, 4)
    assert second.checksum == xxhash.xxh3_128_digest(payload_of(keys[1], 200))


def test_a_block_that_is_there_needs_no_writing(client: LocalClient, namespace: NamespaceHandle) -> None:
    keys = keys_of(3)
    put(client, namespace, keys[:1], 100)
    reservations = client.reserve(namespace, keys, [100] * 3)
    assert [slot is None for slot in reservations] == [True, False, False]
    for slot in reservations.to_write:
        slot.memory[:] = bytes(100)
    assert reservations.commit() == [HAVE_IT, PUBLISHED, PUBLISHED]
    assert client.put(namespace, keys, [bytes(100)] * 3) == [HAVE_IT] * 3


def test_the_first_commit_of_a_key_wins(client: LocalClient, namespace: NamespaceHandle) -> None:
    (key,) = keys_of(1)
    first, second = (client.reserve(namespace, [key], [3]) for _ in range(2))
    for reservations, content in ((first, b"one"), (second, b"two")):
        for slot in reservations.to_write:
            slot.memory[:] = content
    assert first.commit() == [PUBLISHED]
    assert second.commit() == [HAVE_IT]
    block = client.acquire(namespace, [key])[0]
    assert block is not None and bytes(block.memory) == b"one"


def test_a_durable_put_is_durable(client: LocalClient, namespace: NamespaceHandle) -> None:
    keys = keys_of(2)
    assert client.put(namespace, keys, [payload_of(key) for key in keys], durable=True) == [DURABLE] * 2
    assert all(stat is not None and stat.durable for stat in client.stat(namespace, keys))


def test_digests_are_compared_before_anything_is_published(client: LocalClient, namespace: NamespaceHandle) -> None:
    keys = keys_of(2)
    payloads = [payload_of(key) for key in keys]
    right = [xxhash.xxh3_128_digest(payload) for payload in payloads]
    with pytest.raises(DigestMismatch) as caught:
        client.put(namespace, keys, payloads, digests=[right[0], bytes(16)])
    assert keys[1].hex() in str(caught.value)
    assert any("1 of 2" in note for note in caught.value.__notes__)
    assert client.put(namespace, keys, payloads, digests=right) == [HAVE_IT, PUBLISHED]


def test_reservations_are_committed_once(client: LocalClient, namespace: NamespaceHandle) -> None:
    reservations = client.reserve(namespace, keys_of(1), [10])
    reservations.commit()
    with pytest.raises(BadRequest, match="reserve again"):
        reservations.commit()
    (slot,) = reservations
    assert slot is not None
    with pytest.raises(BadRequest, match="not the writer's"):
        _ = slot.memory


def reserved_bytes(client: LocalClient) -> int:
    client.flush()
    return sum(tier.reserved_bytes for tier in client.status().tiers)


def test_what_is_not_committed_is_given_back(client: LocalClient, namespace: NamespaceHandle) -> None:
    keys = keys_of(4)
    with client.reserve(namespace, keys[:1], [4096]):
        assert reserved_bytes(client) == 4096
    client.reserve(namespace, keys[1:2], [4096]).abort()
    client.reserve(namespace, keys[2:3], [4096])
    gc.collect()
    assert reserved_bytes(client) == 0
    assert len(client.match(namespace, keys)) == 0


def test_a_place_that_somebody_may_still_write_into_is_not_given_back(
    client: LocalClient, namespace: NamespaceHandle
) -> None:
    reservations = client.reserve(namespace, keys_of(1), [4096])
    view = reservations.to_write[0].numpy()
    reservations.abort()
    assert reserved_bytes(client) == 4096
    view[:] = 1
    del view
    assert reserved_bytes(client) == 0


def test_wrong_batches_are_refused_and_change_nothing(client: LocalClient, namespace: NamespaceHandle) -> None:
    keys = keys_of(2)
    with pytest.raises(EmptyBlock):
        client.put(namespace, keys, [b"x", b""])
    with pytest.raises(BlockTooLarge):
        client.reserve(namespace, keys, [1, 1 << 40])
    with pytest.raises(BadRequest, match="payloads"):
        client.put(namespace, keys, [b"x"])
    with pytest.raises(BadRequest, match="depths"):
        client.put(namespace, keys, [b"x", b"y"], depths=[1])
    with pytest.raises(BadRequest, match="digests"):
        client.put(namespace, keys, [b"x", b"y"], digests=[bytes(16)])
    with pytest.raises(BadRequest, match="twice"):
        client.put(namespace, [keys[0], keys[0]], [b"x", b"x"])
    assert client.put(namespace, keys[:1], [b"xyz"]) == [PUBLISHED]
    with pytest.raises(LengthMismatch):
        client.put(namespace, keys, [b"xy", b"z"])
    assert len(client.match(namespace, keys)) == 1
    assert reserved_bytes(client) == 0


# --- housekeeping ---


def test_pins_ttl_and_listing(client: LocalClient, namespace: NamespaceHandle) -> None:
    keys = sorted(keys_of(5))
    put(client, namespace, keys)
    assert client.pin(namespace, [*keys[:2], b"missing"]) == 2
    assert client.set_ttl(namespace, keys[:1], 1000.0) == 1
    first, second = client.stat(namespace, keys[:2])
    assert first is not None and second is not None
    assert first.pins == second.pins == 1
    assert 900 < first.ttl_seconds <= 1000 and second.ttl_seconds == 0
    assert client.unpin(namespace, keys[:2]) == 2
    page = client.list_blocks(namespace, limit=3)
    assert [block.key for block in page.blocks] == keys[:3] and page.more
    page = client.list_blocks(namespace, after=page.blocks[-1].key)
    assert [block.key for block in page.blocks] == keys[3:] and not page.more


def test_a_ttl_that_is_almost_over_is_not_taken_for_none(client: LocalClient, namespace: NamespaceHandle) -> None:
    keys = keys_of(1)
    put(client, namespace, keys)
    client.set_ttl(namespace, keys, 1e-6)
    until(lambda: len(client.match(namespace, keys)) == 0, "the block vanishes")


def test_blocks_can_be_verified(client: LocalClient, namespace: NamespaceHandle) -> None:
    keys = keys_of(3)
    put(client, namespace, keys[:2])
    assert client.verify(namespace, keys) == [True, True, False]


def test_the_status_names_tiers_and_namespaces(client: LocalClient, namespace: NamespaceHandle) -> None:
    put(client, namespace, keys_of(2))
    status = client.status()
    assert status.ready
    assert Tier.DRAM in {tier.tier for tier in status.tiers}
    (mine,) = [found for found in status.namespaces if found.name == namespace.name]
    assert mine.blocks == 2


def test_a_hint_is_accepted_and_a_wrong_one_refused(client: LocalClient, namespace: NamespaceHandle) -> None:
    keys = keys_of(1)
    client.put(namespace, keys, [b"x"], hint=HintFields(priority=200, conversation=2**63, turn=3))
    assert client.acquire(namespace, keys, hint=HintFields(priority=0)).prefix == 1
    with pytest.raises(BadRequest, match="priority"):
        client.acquire(namespace, keys, hint=HintFields(priority=256))


# --- namespaces ---


def test_a_family_that_differs_is_refused_by_the_field(client: LocalClient) -> None:
    client.open_namespace("mine", {"model": "m", "dtype": "bf16", "block_tokens": "16"})
    with pytest.raises(FamilyMismatch, match="dtype = bf16") as caught:
        client.open_namespace("mine", {"model": "m", "dtype": "f32", "block_tokens": "16"})
    assert isinstance(caught.value, FamilyMismatch) and caught.value.field == "dtype"


def test_a_namespace_that_is_not_to_be_made_is_missing(client: LocalClient) -> None:
    with pytest.raises(NoSuchNamespace, match="nowhere"):
        client.open_namespace("nowhere", create=False)


def test_the_root_is_what_the_daemon_says_and_a_cache_salt_changes_it(namespace: NamespaceHandle) -> None:
    assert namespace.root() == namespace.opened.root
    assert namespace.root("user 7") == namespace.root(b"user 7") != namespace.root()


def test_an_object_namespace_takes_names_and_empty_blocks(client: LocalClient) -> None:
    objects = client.open_namespace("my-bucket", kind=NamespaceKind.OBJECT)
    names = ["Größe.txt".encode(), b"empty"]
    client.put(objects, names, [b"content", b""])
    assert [block.key for block in client.list_blocks(objects, prefix=b"Gr").blocks] == names[:1]
    blocks = client.acquire(objects, names)
    assert [bytes(block.memory) if block else None for block in blocks] == [b"content", b""]
