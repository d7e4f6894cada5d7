"""What is slower to load than to compute is left, and speeds are learned. Pure; the decision itself: test_loading.py."""

from mooncask.client.operations import Match
from mooncask.client.wire import Tier
from mooncask.engine_adapter.vllm.load_decision import LoadDecisions
from mooncask.engine_adapter.vllm.messages import LoadDone, WorkerHello

SHARD = WorkerHello({}, "", "", block_bytes=1_000_000, block_tokens=32)
SLOW = Match([Tier.NVME] * 10, [0.5 * (i + 1) for i in range(10)])


def test_all_is_loaded_while_nothing_was_measured() -> None:
    assert LoadDecisions("auto", SHARD).limit(400, 0, SLOW).blocks == 10


def test_a_tier_that_is_forecast_slower_than_computing_is_left() -> None:
    decisions = LoadDecisions("auto", SHARD)
    decisions.computed(2000, 1.0)  # 32 tokens in 16 ms, against 500 ms a block
    assert decisions.limit(400, 0, SLOW).blocks == 0
    assert decisions.limit(400, 4, SLOW).blocks == 4
    assert LoadDecisions("always", SHARD).limit(400, 0, SLOW).blocks == 10
    assert LoadDecisions("never", SHARD).limit(400, 0, SLOW).blocks == 0


def test_a_measured_speed_counts_more_than_a_forecast() -> None:
    decisions = LoadDecisions("auto", SHARD)
    decisions.computed(2000, 1.0)
    decisions.loaded(LoadDone("r", 100, 100, 0.1, 100_000_000, int(Tier.NVME)))
    assert decisions.limit(400, 0, SLOW).blocks == 10


def test_steps_of_few_tokens_say_nothing_about_the_speed_of_prefill() -> None:
    decisions = LoadDecisions("auto", SHARD)
    decisions.computed(4, 1.0)
    decisions.computed(2000, 1.0)
    assert decisions.limit(400, 0, SLOW).blocks == 0


def test_what_is_left_is_told_and_what_the_engine_has_itself_costs_nothing() -> None:
    decisions = LoadDecisions("auto", SHARD)
    decisions.computed(2000, 1.0)
    limit = decisions.limit(400, 4, SLOW)
    assert limit.rest is not None and (limit.rest.first, limit.rest.blocks) == (0, 6)
    assert limit.rest.load_seconds == 6 * 0.5


def test_a_tier_that_was_late_is_slow_and_a_hand_over_that_was_waited_for_is_not() -> None:
    decisions = LoadDecisions("auto", SHARD)
    decisions.computed(2000, 1.0)
    fast = Match([Tier.NVME] * 10, [0.001] * 10)
    assert decisions.limit(400, 0, fast).blocks == 10
    decisions.loaded(LoadDone("r", 0, 10, 10.0, 0, 0, late=True))
    decisions.loaded(LoadDone("r", 5, 10, 10.0, 5_000_000, 0))
    assert decisions.limit(400, 0, fast).blocks == 10
    decisions.loaded(LoadDone("r", 0, 10, 10.0, 0, int(Tier.NVME), late=True))
    assert decisions.limit(400, 0, fast).blocks == 0
