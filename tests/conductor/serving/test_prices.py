"""Learned prices: what decode computes of a prompt, how fast workers bring KV, and what placement makes of them."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncask.client.worker_api import (
    DecodeCall,
    DecodeDone,
    Hashing,
    Loaded,
    Node,
    PrefillDone,
    Registration,
    Report,
    Role,
    Step,
)
from mooncask.conductor.scheduling.facts import Slo
from mooncask.conductor.serving.dispatch.books import Books, DecodeEntry, PrefillEntry
from mooncask.conductor.serving.dispatch.costs import PoolCosts, PromptCosts
from mooncask.conductor.serving.dispatch.history import Decision, History
from mooncask.conductor.serving.dispatch.learning import Learning
from mooncask.conductor.serving.dispatch.placing import Placement, Placer, Prompt
from mooncask.conductor.serving.dispatch.policy_table import PolicySettings, PolicyTable
from mooncask.conductor.serving.dispatch.pools import Pools, Worker
from mooncask.conductor.serving.dispatch.prefixes import Held
from mooncask.conductor.serving.dispatch.rates import MEMORY_BYTES, START_BYTES, TIERS, FetchRates

BLOCK = 16
BLOCK_BYTES = 1 << 20
SLOW = 50e6


def learning(nodes: int = 2, start: float = 1e9) -> Learning:
    """Prefill and decode workers p1, d1 on n1 and so on; a token takes a millisecond."""
    pools = Pools()
    hashing = Hashing(
        namespace="n", fingerprint="", tenant_salt="", hash="sha256", block_tokens=BLOCK, block_bytes=BLOCK_BYTES
    )
    for number in range(1, nodes + 1):
        for letter, role in (("p", Role.PREFILL), ("d", Role.DECODE)):
            told = Registration(
                name=f"{letter}{number}", incarnation="1", address="", role=role, model="m", family={},
                hashing=hashing, node=Node(name=f"n{number}"), positions_max=9999, slots=4,
                prefill_tokens_per_second=1000.0,
            )  # fmt: skip
            pools.register(told, 0.0)
    return Learning(pools, Books(), History(), start)


def worker(learned: Learning, name: str) -> Worker:
    return next(one for one in learned.pools.all() if one.name == name)


def prefilled(computed: int, cached: int, seconds: float, load_seconds: float = 0.0, tier: str = "peer") -> PrefillDone:
    size = cached // BLOCK * BLOCK_BYTES
    return PrefillDone(
        prompt_tokens=cached + computed + 3, cached_tokens=cached, computed_tokens=computed, stored_blocks=0,
        queue_seconds=0.0, seconds=seconds, load_seconds=load_seconds, loaded=[Loaded(tier, size)] if size else [],
    )  # fmt: skip


def decoded(computed: int, cached: int, prompt_seconds: float, load_seconds: float = 0.0) -> DecodeDone:
    loaded = [Loaded("peer", cached // BLOCK * BLOCK_BYTES)] if cached else []
    return DecodeDone(
        reason="length", output_tokens=1, cached_tokens=cached, computed_tokens=computed,
        load_seconds=load_seconds, loaded=loaded, prompt_seconds=prompt_seconds,
    )  # fmt: skip


# --- rates ---


def test_a_rate_begins_as_configured_and_ends_as_measured() -> None:
    rates = FetchRates(1e9)
    assert rates.of("p1") == rates.pool() == pytest.approx(1e9)
    for _ in range(40):
        rates.observe("p1", [Loaded("peer", 4 * START_BYTES)], 4 * START_BYTES / SLOW)
    assert rates.of("p1") == pytest.approx(SLOW, rel=0.05)
    assert rates.seconds("p1", SLOW) == pytest.approx(1.0, rel=0.05)


def test_a_worker_that_has_not_loaded_yet_is_taken_to_be_as_fast_as_the_pool() -> None:
    rates = FetchRates(1e9)
    for _ in range(20):
        rates.observe("p1", [Loaded("peer", 4 * START_BYTES)], 4 * START_BYTES / SLOW)
    assert rates.of("p2") == pytest.approx(SLOW, rel=0.1)
    assert rates.of("p2", "nvme") == pytest.approx(1e9)
    rates.forget("p1")
    assert [(one.worker, one.tier, one.measured_bytes) for one in rates.rows(["p1"])] == [("p1", "peer", 0.0)]
    assert rates.of("p1") == pytest.approx(SLOW, rel=0.1)  # what it has taught the others stays


def test_workers_of_unlike_links_are_told_apart() -> None:
    rates = FetchRates(1e9)
    for _ in range(40):
        rates.observe("near", [Loaded("peer", 4 * START_BYTES)], 4 * START_BYTES / 5e9)
        rates.observe("far", [Loaded("peer", 4 * START_BYTES)], 4 * START_BYTES / SLOW)
    assert rates.of("near") > 2e9
    assert rates.of("far") == pytest.approx(SLOW, rel=0.05)


def test_of_a_load_from_two_tiers_the_slower_gets_what_the_other_leaves_over() -> None:
    rates = FetchRates(1e9)
    far = rates.observe("p1", [Loaded("dram", 100_000_000), Loaded("peer", 100_000_000)], 1.1)
    assert far == pytest.approx(1.0)
    assert {one.tier for one in rates.rows(["p1"])} == {"peer"}
    assert rates.observe("p1", [Loaded("dram", 100_000_000)], 0.05) == 0.0
    assert {one.tier for one in rates.rows(["p1"])} == {"dram", "peer"}


def test_a_link_that_turns_slow_is_known_for_it_after_as_much_as_is_remembered() -> None:
    rates = FetchRates(1e9)
    for _ in range(100):
        rates.observe("p1", [Loaded("peer", MEMORY_BYTES // 10)], MEMORY_BYTES / 10 / 1e9)
    for _ in range(30):
        rates.observe("p1", [Loaded("peer", MEMORY_BYTES // 10)], MEMORY_BYTES / 10 / SLOW)
    assert rates.of("p1") == pytest.approx(SLOW, rel=0.1)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.builds(Loaded, st.sampled_from([*TIERS, "tape", ""]), st.integers(-5, 1 << 45)), max_size=6),
            st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=20,
    )
)
def test_whatever_a_worker_tells_a_rate_is_a_positive_number_and_there_are_five_tiers(
    told: list[tuple[list[Loaded], float]],
) -> None:
    rates = FetchRates(1e9)
    for loaded, seconds in told:
        far = rates.observe("p1", loaded, seconds)
        assert 0 <= far <= max(0.0, seconds if math.isfinite(seconds) else 0.0) + 1e-9
    rows = rates.rows(["p1"])
    assert 1 <= len(rows) <= len(TIERS)
    assert all(math.isfinite(one.bytes_per_second) and one.bytes_per_second > 0 for one in rows)


# --- learning ---


def test_a_prefill_teaches_computing_and_its_load_from_another_node_fetching() -> None:
    learned = learning()
    for _ in range(60):
        loads = 64 * BLOCK_BYTES / SLOW
        learned.prefilled(worker(learned, "p1"), prefilled(128, 1024, 0.5 + loads, loads))
    costs = learned.costs_of("m")
    assert costs.prefill_seconds(1152, 1024) == pytest.approx(0.5, rel=0.05)
    assert costs.rates.of("p1") == pytest.approx(SLOW, rel=0.1)
    assert learned.costs_of("m").learned().fetch_bytes_per_second == costs.rates.pool()


def test_what_was_loaded_on_the_node_itself_is_a_part_of_a_prefill() -> None:
    learned = learning()
    for _ in range(60):
        learned.prefilled(worker(learned, "p1"), prefilled(128, 1024, 0.7, 0.2, "dram"))
    assert learned.costs_of("m").prefill_seconds(1152, 1024) == pytest.approx(0.7, rel=0.05)


def test_what_decode_computes_of_prompts_has_a_price_of_its_own() -> None:
    learned, source = learning(), random.Random(1)
    call = DecodeCall(id="a", tokens=[1], max_tokens=1, wait_seconds=5.0)
    for _ in range(300):
        computed = source.randint(1, 60)
        learned.decoded(worker(learned, "d1"), call, decoded(computed, 512, 0.05 + 0.01 * computed, 9.0))
        learned.prefilled(worker(learned, "p1"), prefilled(512, 0, 0.5))
    costs = learned.costs_of("m")
    assert costs.tail_seconds(512 + 40, 512) == pytest.approx(0.45, rel=0.1)
    assert costs.prefill_seconds(512, 0) == pytest.approx(0.5, rel=0.1)
    assert costs.rates.rows(["d1"])[0].measured_bytes == 0  # its loads waited for the prefill


def test_an_inline_load_teaches_how_fast_a_decode_worker_brings_kv() -> None:
    learned = learning()
    call = DecodeCall(id="a", tokens=[1], max_tokens=1)
    for _ in range(40):
        learned.decoded(worker(learned, "d1"), call, decoded(8, 1024, 0.1, 64 * BLOCK_BYTES / SLOW))
    assert learned.costs_of("m").rates.of("d1") == pytest.approx(SLOW, rel=0.1)


@pytest.mark.parametrize("seconds", [-1.0, 1e300, 4000.0])
def test_a_worker_whose_clock_is_broken_teaches_nothing(seconds: float) -> None:
    learned = learning()
    costs, one = learned.costs_of("m"), worker(learned, "p1")
    before = (costs.learned(), costs.rates.of("p1"), costs.rates.pool())
    learned.prefilled(one, prefilled(512, 512, seconds, seconds))
    learned.prefilled(one, prefilled(10**400, 0, 0.5))
    learned.decoded(one, DecodeCall(id="r", tokens=[1], max_tokens=1), decoded(64, 64, seconds, seconds))
    step = Step(4, 1000, seconds)
    one.report = Report(name="p1", incarnation="1", role=Role.PREFILL, steps=[step, Step(10**400, 1, 0.1)])
    learned.reported(one)
    assert (costs.learned(), costs.rates.of("p1"), costs.rates.pool()) == before
    assert learned.books.slowness == {}
    assert not learned.history.step_calibration


def test_at_least_the_last_token_is_computed_by_decode() -> None:
    costs = learning().costs_of("m")
    assert costs.tail_seconds(64, 64) == costs.tail_seconds(64, 48) > 0
    assert costs.prefill_seconds(64, 64) <= costs.prefill_seconds(79, 48) == costs.prefill_seconds(64, 48)


def test_how_long_answers_take_is_a_mean_of_all_until_there_are_twenty_and_then_of_the_last() -> None:
    books = Books()
    assert books.decode_seconds is None
    for seconds in (1.0, 5.0, 6.0):
        books.answered(DecodeEntry("d1", 10, 0.0, started=0.0, output_tokens=8), seconds)
    assert books.decode_seconds == pytest.approx(4.0)
    assert books.expected_output < 128
    for _ in range(100):
        books.answered(DecodeEntry("d1", 10, 0.0, started=0.0, output_tokens=8), 9.0)
    assert books.decode_seconds == pytest.approx(9.0, abs=0.1)
    assert books.expected_output == 8


# --- placing ---


def placed(
    learned: Learning, tokens: int, held: dict[str, Held], policy: str = "kvcache-centric", share: bool = True
) -> tuple[Placement, Decision]:
    table = PolicyTable(PolicySettings(policy, "early", 1.0, 1.5, {"": Slo(5.0, 1.0)}, "", nodes_share=share))
    decision = Decision(id="a", at=0.0, model="m", tenant="", service_class="", prompt_tokens=tokens, max_tokens=1)
    placer, costs = Placer(learned.pools, learned.books, 64, share), learned.costs_of("m")
    prompt = Prompt("a", "m", tokens, 0, BLOCK, held)
    for one in learned.pools.all():
        one.heard = 1e12
    return placer.place(prompt, table.policies("", costs.decode), costs, decision, set(), True), decision


def test_an_inline_request_does_not_wait_for_prefill_queues_and_pays_what_decode_takes() -> None:
    learned = learning()
    call = DecodeCall(id="a", tokens=[1], max_tokens=1)
    for computed in [*range(1, 65)] * 5:
        learned.decoded(worker(learned, "d1"), call, decoded(computed, 512, 0.02 + 0.002 * computed))
    for name in ("p1", "p2"):
        learned.books.prefills[f"before {name}"] = PrefillEntry(name, 4000, 4.9)
    placement, decision = placed(learned, 532, {"n1": Held(32, 32), "n2": Held(32, 32)})
    assert placement.prefill is None
    assert decision.inline
    assert decision.predicted_ttft == pytest.approx(0.06, rel=0.2)
    assert [one.worker for one in decision.candidates] == ["d1", "d2"]


def test_who_does_not_hold_a_prefix_is_judged_with_what_bringing_it_takes_there() -> None:
    learned = learning()
    for _ in range(40):
        learned.prefilled(worker(learned, "p2"), prefilled(16, 1024, 9.0, 64 * BLOCK_BYTES / SLOW))
    held = {"n1": Held(64, 64), "n2": Held(0, 0)}
    _, decision = placed(learned, 1200, held, "load-balancing")
    costs = learned.costs_of("m")
    far = next(one for one in decision.candidates if one.worker == "p2")
    near = next(one for one in decision.candidates if one.worker == "p1")
    assert far.ttft_seconds - near.ttft_seconds >= 0.9 * 64 * BLOCK_BYTES / costs.rates.of("p2")
    assert (near.brought_tokens, near.held_tokens, far.held_tokens) == (0, 1024, 0)


@pytest.mark.parametrize("policy", ["random", "load-balancing", "cache-aware", "kvcache-centric"])
def test_every_placement_reckons_with_what_daemons_bring_where_they_are_one_cluster(policy: str) -> None:
    learned = learning()
    held = {"n1": Held(64, 64), "n2": Held(0, 0)}
    _, decision = placed(learned, 1200, held, policy)
    assert decision.predicted_ttft < 0.4
    assert {one.brought_tokens for one in decision.candidates} == {0, 1024}
    assert learned.books.prefills["a"].seconds < 0.3
    _, apart = placed(learned, 1200, held, policy, share=False)
    assert max(one.ttft_seconds for one in apart.candidates) > 1.1


def test_a_prompts_costs_are_those_of_the_worker_that_is_asked_about() -> None:
    pool = PoolCosts.starting(1000.0, BLOCK_BYTES, BLOCK, 1e9)
    for _ in range(40):
        pool.rates.observe("far", [Loaded("peer", 4 * START_BYTES)], 4 * START_BYTES / SLOW)
        pool.rates.observe("near", [Loaded("peer", 4 * START_BYTES)], 4 * START_BYTES / 1e9)
    costs = PromptCosts(pool, ["near", "far"], False)
    assert costs.fetch_seconds(0, 1, 160) > 5 * costs.fetch_seconds(1, 0, 160)
    assert costs.fetch_seconds(1, 1, 160) == 0.0
    assert costs.occupied_seconds(160, 0) < costs.prefill_seconds(160, 0)
