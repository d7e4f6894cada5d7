"""How the bench counts: percentiles, shares of a limit, targets, and limits that really do what they are named for."""

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mooncask.tools.bench.counterpart import Counterpart
from mooncask.tools.bench.disk_limits import READ, WRITE, PlainFile, takes_direct_io
from mooncask.tools.bench.memory_limits import (
    COPY,
    COPY_OUT,
    COPY_SHARED,
    Copies,
    blocks_of,
    private_memory,
    shared_memory,
)
from mooncask.tools.bench.plan import FULL, QUICK, BlockPlan, Plan
from mooncask.tools.bench.report import document, print_findings
from mooncask.tools.bench.result import Fact, Findings, Measure, Skipped, beside, measured
from mooncask.tools.bench.samples import Samples, percentile, take_turns
from mooncask.tools.bench.summary import summary
from mooncask.tools.bench.targets import (
    GET_COPY,
    GET_IN_PLACE,
    MATCH,
    MEMORY_EMPTY,
    WHILE_STREAMING,
    judge_fact,
    judge_measure,
)

KIB, MIB = 1 << 10, 1 << 20


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1.0))
def test_a_percentile_is_the_smallest_value_that_enough_values_do_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


def test_the_first_round_counts_as_cold_and_nowhere_else() -> None:
    samples = Samples([9.0, 1.0, 2.0, 3.0])
    assert (samples.cold_seconds, samples.p50_seconds, samples.p99_seconds) == (9.0, 2.0, 3.0)


def test_a_single_round_is_both_cold_and_counted() -> None:
    samples = Samples([4.0])
    assert (samples.cold_seconds, samples.p50_seconds) == (4.0, 4.0)


def test_competitors_take_turns_round_by_round() -> None:
    calls: list[tuple[str, int]] = []

    def runner(name: str, i: int) -> Mapping[str, float]:
        calls.append((name, i))
        return {name: float(i)}

    found = take_turns([lambda i: runner("a", i), lambda i: runner("b", i)], 2)
    assert calls == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert {name: samples.seconds for name, samples in found.items()} == {"a": [0.0, 1.0], "b": [0.0, 1.0]}


def test_a_rate_is_the_bytes_of_a_batch_by_the_median_round() -> None:
    measure = measured("mooncask", "put", Samples([1.0, 0.5]), block_bytes=10**6, batch=100)
    assert measure.gb_per_second == pytest.approx(0.2)


def test_half_the_speed_of_its_limit_is_a_ratio_of_one_half() -> None:
    slow = measured("mooncask", GET_COPY, Samples([2.0]), 4096, 1)
    fast = measured("limit", "memcpy", Samples([1.0]), 4096, 1)
    assert beside(slow, fast).ratio == pytest.approx(0.5)
    assert beside(slow, fast).limit == "memcpy"


def latency(name: str, seconds: float, block_bytes: int) -> Measure:
    return measured("mooncask", name, Samples([seconds]), block_bytes, 32, moves_bytes=False)


def test_a_target_in_microseconds_is_met_at_the_bound_and_missed_above() -> None:
    assert judge_measure(latency(MATCH, 300e-6, 0)).met is True
    assert judge_measure(latency(MATCH, 301e-6, 0)).met is False


def test_a_target_for_one_block_size_does_not_judge_another() -> None:
    assert judge_measure(latency(GET_IN_PLACE, 1.0, 2 * MIB)).met is False
    assert judge_measure(latency(GET_IN_PLACE, 1.0, 16 * MIB)).met is None


def test_a_target_that_is_a_share_needs_its_limit() -> None:
    alone = latency(GET_COPY, 1.0, 2 * MIB)
    assert judge_measure(alone).met is None
    limit = measured("limit", "memcpy", Samples([0.84]), 2 * MIB, 32)
    assert judge_measure(beside(alone, limit)).met is False


def test_facts_are_judged_in_their_own_unit() -> None:
    assert judge_fact(Fact(MEMORY_EMPTY, 100.0, "MB")).met is True
    assert judge_fact(Fact(WHILE_STREAMING, 5.1, "ms")).met is False
    assert judge_fact(Fact("something else", 1.0, "s")).met is None


def test_every_missed_target_is_listed_in_the_document_and_marked_in_the_table() -> None:
    findings = Findings(
        measures=[judge_measure(latency(MATCH, 1.0, 0))],
        facts=[judge_fact(Fact(MEMORY_EMPTY, 500.0, "MB"))],
        skipped=[Skipped("redis", "not here")],
    )
    found = json.loads(json.dumps(document(findings, "mooncask bench store", "0")))
    assert found["missed"] == [MATCH, MEMORY_EMPTY]
    assert {"cores", "memory_bytes", "processor", "kernel", "python"} <= found["machine"].keys()
    console = Console(record=True, width=200, file=io.StringIO())
    print_findings(console, findings)
    text = console.export_text()
    assert text.count("MISSED") == 2
    assert "skipped: redis: not here" in text and "0 of 2 targets met" in text


@pytest.mark.parametrize("plan", [FULL, QUICK])
def test_no_working_set_exceeds_half_of_the_arena(plan: Plan) -> None:
    assert all(b.block_bytes * plan.batch * b.set_batches * 2 <= plan.dram_bytes for b in plan.blocks)


def test_a_plan_whose_working_set_is_too_large_is_refused() -> None:
    block = BlockPlan(MIB, set_batches=8, view_rounds=1, copy_rounds=1, disk_rounds=1, http_rounds=1)
    with pytest.raises(AssertionError):
        Plan((block,), batch=32, dram_bytes=MIB, nvme_bytes=0, segment_bytes=0, many_blocks=0, stream_bytes=0,
                   match_rounds=0)  # fmt: skip


def test_the_summary_shows_each_measure_beside_its_limit_and_marks_what_was_missed() -> None:
    limit = measured("limit", "memcpy", Samples([1.0]), 2 * MIB, 32)
    ours = judge_measure(beside(measured("mooncask", GET_COPY, Samples([2.0]), 2 * MIB, 32), limit))
    peer = measured("redis", GET_COPY, Samples([4.0]), 2 * MIB, 32)
    facts = [judge_fact(Fact(MEMORY_EMPTY, 70.0, "MB"))]
    text = summary(document(Findings([ours, limit, peer], facts), "mooncask bench store", "0"))
    assert "| get into a private buffer | 0.03 GB/s | memcpy: 0.07 GB/s; redis: 0.02 GB/s | 0.50 |" in text
    assert "| ≥ 0.85 of memcpy: **missed** |" in text
    assert "| 70 MB | | | ≤ 100 MB: met |" in text


# --- limits ----------------------------------------------------------------------------------------------------------


def test_blocks_of_memory_differ_from_one_another() -> None:
    blocks = blocks_of(private_memory(4 * MIB), 64 * KIB, 64, 0)
    assert len({block.tobytes() for block in blocks}) == 64


def test_batches_walk_over_memory_and_begin_again() -> None:
    memory = private_memory(4 * 8 * KIB)
    first, second, third = (blocks_of(memory, 8 * KIB, 2, i)[0].ctypes.data for i in range(3))
    assert (second - first, third) == (16 * KIB, first)


def test_the_copy_limits_copy_every_byte() -> None:
    source, private, shared = private_memory(MIB, seed=3), private_memory(MIB), shared_memory(MIB)
    copies = Copies(source, private, shared, 64 * KIB, 16)
    assert copies.private(0)[COPY] > 0 and np.array_equal(source, private)
    private[:] = 0
    assert copies.into_shared(0)[COPY_SHARED] > 0 and np.array_equal(source, shared)
    assert copies.out_of_shared(0)[COPY_OUT] > 0 and np.array_equal(source, private)


def test_the_copy_limits_touch_other_memory_than_the_store_does_in_the_same_round() -> None:
    block = 64 * KIB
    source, private, shared = private_memory(8 * block, 1), private_memory(8 * block, 2), shared_memory(8 * block)
    copies = Copies(source, private, shared, block, 1)
    copies.private(0)
    copies.into_shared(0)
    copies.out_of_shared(0)
    touched = [i for i in range(8) if np.array_equal(private[i * block :][:block], source[i * block :][:block])]
    assert touched == [4]
    assert np.array_equal(shared[2 * block :][:block], source[2 * block :][:block])
    assert np.array_equal(private[6 * block :][:block], shared[6 * block :][:block])
    assert not np.array_equal(private[:block], source[:block])


def test_the_plain_file_is_written_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "plain"
    with PlainFile(path, 64 * KIB, batch=4, batches=2, io_threads=2, direct=takes_direct_io(tmp_path)) as file:
        assert file.write(0)[WRITE] > 0 and file.write(1)[WRITE] > 0
        assert path.stat().st_size == 2 * 4 * 64 * KIB
        assert path.read_bytes()[: 4 * 64 * KIB] == private_memory(4 * 64 * KIB).tobytes()
        assert file.read(1)[READ] > 0
    assert not path.exists()


@pytest.mark.parametrize("connect", [Counterpart.over_unix, Counterpart.over_tcp])
def test_the_bare_socket_moves_the_bytes_it_is_asked_for(connect: Callable[[], Counterpart]) -> None:
    target = bytearray(b"\xff" * 3 * MIB)
    with connect() as counterpart:
        counterpart.echo()
        counterpart.write(memoryview(bytes(3 * MIB)))
        counterpart.read_into(memoryview(target))
    assert target == bytes(3 * MIB)
