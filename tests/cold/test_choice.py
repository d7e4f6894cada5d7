"""Which blocks go into the bucket, which packs leave it, and when the bucket is left alone."""

import pytest

from mooncask.daemon.cold.choice import Rules, dead_nodes, dead_packs, others_will, to_merge
from mooncask.daemon.cold.health import FAULTS_MAX, PAUSE_SECONDS_MAX, Health, Pace
from mooncask.daemon.cold.index import Pack, PackName
from mooncask.daemon.cold.names import INDEX, PACKS, Run, index_path, pack_path, parse_numbered, run_of
from mooncask.daemon.cold.sealing import NO_KEY_ID
from mooncask.daemon.cold.settings import check_cold
from mooncask.daemon.config import ColdSection
from mooncask.errors import ConfigError
from mooncask.tiers.leaving import Candidate
from mooncask.tiers.namespace import Namespace, NamespaceSpec

NAMESPACE = Namespace(1, NamespaceSpec("kv"))


def block(hits: int = 0, pins: int = 0, created: int = 1000) -> Candidate:
    return Candidate(NAMESPACE, b"k", 1, 100, hits, pins, created)


def test_blocks_go_when_the_last_tier_gets_full_or_always_or_never() -> None:
    assert [Rules("leaving", 0.7, 0, 0).active(fill) for fill in (0.69, 0.7)] == [False, True]
    assert Rules("all", 0.7, 0, 0).active(0.0) and not Rules("none", 0.7, 0, 0).active(1.0)


def test_blocks_that_were_not_read_or_are_young_do_not_go_but_pinned_ones_do() -> None:
    rules = Rules("leaving", 0.7, hits_min=2, age_min_seconds=60)
    assert rules.wants(block(hits=2), 1060.0)
    assert not rules.wants(block(hits=1), 1060.0) and not rules.wants(block(hits=2), 1059.0)
    assert rules.wants(block(pins=1), 1000.0)


def test_of_all_nodes_that_have_a_block_exactly_one_puts_it_there() -> None:
    holders = [b"a", b"b", b"c"]
    will = [own for own in holders if not others_will(own, [other for other in holders if other != own])]
    assert will == [b"a"]
    assert not others_will(b"z", []), "nobody else, or nobody knows"


def packs(*live: int, created: int = 0) -> list[Pack]:
    made = [Pack(PackName(bytes(16), i), "n", 100, created + i, NO_KEY_ID) for i in range(len(live))]
    for pack, blocks in zip(made, live, strict=True):
        pack.live = blocks
    return made


def dead(found: list[Pack]) -> list[int]:
    return [pack.name.number for pack in found]


def test_a_pack_without_living_blocks_is_dead_unless_some_are_only_unknown_here() -> None:
    own = packs(1, 0, 0)
    own[2].left_out = 5
    assert dead(dead_packs(own, (), 0, 0, 1e9)) == [1]
    assert dead_packs(own, {own[1].name}, 0, 0, 1e9) == [], "it is being written"


def test_packs_that_were_not_used_for_long_go_and_of_too_many_the_longest_unused() -> None:
    own = packs(1, 1, 1, 1)
    own[0].used_seconds = 900.0
    assert dead(dead_packs(own, (), 0, 200.0, 1000.0)) == [1, 2, 3]
    assert dead(dead_packs(own, (), 250, 0, 1000.0)) == [1, 2]
    assert dead_packs(own, (), 400, 0, 1000.0) == []


def test_a_node_is_dead_when_it_was_not_heard_of_for_long() -> None:
    assert dead_nodes({"a": 100.0, "b": 150.0}, 200.0, 60.0) == ["a"]


def test_index_objects_are_merged_when_there_are_many_small_ones() -> None:
    assert to_merge([10] * 16, 16, 1000) == []
    assert to_merge([10] * 17, 16, 1000) == list(range(17))
    assert to_merge([5000, *[10] * 17], 16, 1000) == list(range(1, 18))
    assert to_merge([100] * 20, 16, 1000) == list(range(10))


def test_a_bucket_that_fails_again_and_again_is_left_alone_for_longer_and_longer() -> None:
    health, now = Health(), 100.0
    assert [health.failed("x", now, 5.0) for _ in range(FAULTS_MAX)] == [False] * (FAULTS_MAX - 1) + [True]
    assert not health.usable(now + 0.9) and health.usable(now + 1.0)
    pauses = []
    for _ in range(8):
        now = now + 1000.0
        assert health.usable(now) and not health.failed("x", now, 9.0), "said once"
        pauses.append(next(p for p in range(1, 100) if health.usable(now + p)))
    assert pauses == sorted(pauses) and pauses[-1] == PAUSE_SECONDS_MAX
    assert health.down_since == 5.0
    health.worked()
    assert health.usable(now) and not health.down_since and health.faults == 0


def test_what_a_read_takes_is_learnt_from_reads() -> None:
    pace = Pace()
    for _ in range(50):
        pace.read(1000, 0.02)
        pace.read(50_000_000, 0.52)
    assert pace.latency_seconds == pytest.approx(0.02, rel=0.2)
    assert pace.seconds(100_000_000) == pytest.approx(1.0, rel=0.2)


def test_paths_name_node_run_and_number_and_strangers_are_no_paths_of_ours() -> None:
    run = run_of("a node/with: odd ö name", bytes(range(16)))
    assert run.incarnation == bytes(range(16))
    for path, beginning in ((pack_path(run, 255), PACKS), (index_path(run, 255), INDEX)):
        found = parse_numbered(path, beginning)
        assert found is not None and (found.run, found.number) == (run, 255)
    assert Run("x-0001020304050607", "08090a0b0c0d0e0f").incarnation == bytes(range(16))
    for stranger in ("v1/packs/x", "v1/packs/a/b/c", "v2/packs/" + run.folder + "/00000001", ""):
        assert parse_numbered(stranger, PACKS) is None


@pytest.mark.parametrize(
    ("key", "section"),
    [
        ("cold.bucket", ColdSection(bucket="https://x/y")),
        ("cold.endpoint", ColdSection(bucket="s3://abc/p", endpoint="http://s3.example.org")),
        ("cold.endpoint", ColdSection(bucket="s3://abc/p", endpoint="ftp://127.0.0.1")),
        ("cold.access_key", ColdSection(bucket="s3://abc/p", access_key="a")),
        ("cold.secret", ColdSection(bucket="s3://abc/p", access_key="a", secret="b", secret_file="c")),
        ("cold.pack", ColdSection(bucket="s3://abc/p", pack=1)),
        ("cold.queue_max", ColdSection(bucket="s3://abc/p", queue_max=1 << 20)),
        ("cold.deadline", ColdSection(bucket="s3://abc/p", deadline=0)),
    ],
)
def test_what_can_not_be_meant_is_refused_by_the_name_of_its_key(key: str, section: ColdSection) -> None:
    with pytest.raises(ConfigError) as refused:
        check_cold(section)
    assert refused.value.key == key


def test_plain_http_is_for_loopback_and_nothing_is_checked_without_a_bucket() -> None:
    check_cold(ColdSection(bucket="s3://abc/p", endpoint="http://127.0.0.1:8333"))
    check_cold(ColdSection(bucket="s3://abc", endpoint="https://s3.example.org"))
    check_cold(ColdSection(pack=1))
