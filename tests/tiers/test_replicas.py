"""Which copies leave first: the pure part, over a catalogue without tiers."""

from mooncask.tiers.block import BlockRecord
from mooncask.tiers.catalogue import Catalogue
from mooncask.tiers.namespace import NamespaceRegistry, NamespaceSpec
from mooncask.tiers.replicas import REST_SECONDS, Replicas

SIZE = 100


def replicas_of(blocks: int) -> tuple[Replicas, Catalogue, list[int]]:
    """One chain, all noted at second 0."""
    registry = NamespaceRegistry()
    namespace = registry.new(NamespaceSpec("ns"))
    registry.enter(namespace)
    catalogue = Catalogue(registry)
    slots = [
        catalogue.insert(namespace, BlockRecord(namespace.id, bytes([i]), SIZE, bytes(16), i + 1, depth=i))
        for i in range(blocks)
    ]
    replicas = Replicas(catalogue)
    for slot in slots:
        replicas.note(slot, 0.0)
    return replicas, catalogue, slots


def anything(_: int) -> bool:
    return True


def release(replicas: Replicas, catalogue: Catalogue, slots: list[int]) -> None:
    for slot in slots:
        replicas.released(slot, catalogue.sequence[slot])


def test_those_that_continue_others_are_asked_about_first_and_no_more_than_are_wanted() -> None:
    replicas, _, slots = replicas_of(8)
    assert replicas.coldest(100, 3 * SIZE, anything, REST_SECONDS) == [slots[2], slots[1], slots[0]]
    assert replicas.coldest(2, 1000 * SIZE, anything, REST_SECONDS) == [slots[4], slots[3]]


def test_what_was_noted_just_now_or_used_since_is_left_alone_unless_nothing_else_can_leave() -> None:
    replicas, catalogue, slots = replicas_of(2)
    assert replicas.coldest(100, SIZE, anything, REST_SECONDS / 2) == []
    catalogue.hits[slots[0]] += 1
    assert replicas.coldest(100, 2 * SIZE, anything, REST_SECONDS) == [slots[1]]
    assert set(replicas.coldest(100, 2 * SIZE, anything, REST_SECONDS, at_once=True)) == set(slots)


def test_spares_leave_before_others_but_not_one_that_is_used_or_may_not() -> None:
    replicas, catalogue, slots = replicas_of(4)
    assert replicas.take(anything) is None, "nobody has said yet that another node keeps one"
    release(replicas, catalogue, slots[:3])
    catalogue.hits[slots[0]] += 1
    assert replicas.take(lambda slot: slot != slots[1]) == slots[2]
    assert replicas.take(lambda slot: slot != slots[1]) is None
    assert replicas.used_spares() == [slots[0]] and not replicas.is_spare(slots[0])
    assert replicas.take(anything) == slots[1]


def test_the_bytes_of_spares_add_up() -> None:
    replicas, catalogue, slots = replicas_of(4)
    release(replicas, catalogue, slots)
    assert replicas.spare_bytes(on_nvme=False) == 4 * SIZE and replicas.spare_bytes(on_nvme=True) == 0
    replicas.take(anything)
    replicas.is_last(slots[1], catalogue.sequence[slots[1]])
    catalogue.hits[slots[2]] += 1
    assert replicas.used_spares() == [slots[2]]
    assert replicas.spare_bytes(on_nvme=False) == SIZE and replicas.spares == 1
    assert replicas.take_all_back() == [slots[3]] and replicas.spare_bytes(on_nvme=False) == 0


def test_a_noted_block_is_held_back_only_while_somebody_can_be_asked() -> None:
    replicas, catalogue, slots = replicas_of(2)
    assert not replicas.holds_back(slots[0])
    replicas.asked_first = True
    assert replicas.holds_back(slots[0])
    replicas.is_last(slots[0], catalogue.sequence[slots[0]])
    assert not replicas.holds_back(slots[0]), "the last copy leaves by the policy's order"
    release(replicas, catalogue, slots[1:])
    assert not replicas.holds_back(slots[1])


def test_who_finds_nothing_that_may_leave_asks_at_once() -> None:
    replicas, _, _ = replicas_of(1)
    wanted: list[bool] = []
    replicas.on_wanted = wanted.append
    replicas.fell_short()
    assert wanted == []
    replicas.asked_first = True
    replicas.fell_short()
    assert wanted == [True]


def test_a_slot_that_has_its_next_block_is_nobodys_replica() -> None:
    replicas, catalogue, slots = replicas_of(2)
    versions = [catalogue.sequence[slot] for slot in slots]
    replicas.released(slots[0], versions[0])
    for slot in slots:
        catalogue.sequence[slot] += 100
    assert not replicas.is_spare(slots[0]) and replicas.take(anything) is None
    assert replicas.coldest(100, 1000, anything, REST_SECONDS) == []
    assert replicas.spare_bytes(on_nvme=False) == 0 and len(replicas) == 0
