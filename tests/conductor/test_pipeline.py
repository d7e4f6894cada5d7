"""Chunked pipeline parallelism and layer-wise overlap."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncask.conductor.models.fitted import FITTED_PREFILL
from mooncask.conductor.models.pipeline import (
    LayerWise,
    best_chunk,
    chunk_seconds,
    pipelined_prefill_seconds,
    through_pipeline,
)


@given(st.integers(1, 100_000), st.integers(0, 99_999), st.integers(1, 20_000))
@settings(deadline=None)
def test_chunks_cost_together_what_the_whole_costs(tokens: int, prefix: int, chunk: int) -> None:
    prefix = min(prefix, tokens)
    chunks = chunk_seconds(FITTED_PREFILL, tokens, prefix, chunk)
    assert sum(chunks) == pytest.approx(FITTED_PREFILL.seconds(tokens, prefix), abs=1e-12)


def test_a_short_request_gains_and_loses_nothing_in_a_pipeline() -> None:
    alone = FITTED_PREFILL.seconds(4000, 0)
    assert pipelined_prefill_seconds(FITTED_PREFILL, 4000, 0, 8192, stages=4) == pytest.approx(alone)


def test_a_long_request_gains_nearly_the_number_of_stages() -> None:
    alone = FITTED_PREFILL.seconds(131_072, 0)
    piped = pipelined_prefill_seconds(FITTED_PREFILL, 131_072, 0, 2048, stages=4)
    assert alone / 4 < piped < alone / 3.5


@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=12), st.integers(1, 5), st.floats(0, 0.1), st.floats(0, 3))
@settings(deadline=None)
def test_the_pipeline_is_never_faster_than_its_work_nor_slower_than_one_after_the_other(
    chunks: list[float], stages: int, hop: float, busy: float
) -> None:
    done = through_pipeline(chunks, [busy] * stages, 0.0, hop)[-1]
    assert done >= busy + sum(chunks) / stages - 1e-9
    assert done <= busy + sum(chunks) + hop * stages + 1e-9


def test_the_best_chunk_is_the_best_of_those_tried() -> None:
    chunk = best_chunk(FITTED_PREFILL, 65_536, 0, stages=4, hop_seconds=0.01)
    times = {
        size: pipelined_prefill_seconds(FITTED_PREFILL, 65_536, 0, size, 4, 0.01)
        for size in (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)
    }
    assert times[chunk] == min(times.values())


@given(st.floats(0, 100), st.floats(0.001, 100))
@settings(deadline=None)
def test_overlapping_a_load_costs_less_than_doing_it_first(load: float, compute: float) -> None:
    seconds = LayerWise(80).execution_seconds(load, compute)
    assert max(load, compute) <= seconds <= load + compute


def test_an_overlapped_store_shows_only_its_last_layer() -> None:
    assert LayerWise(80).visible_store_seconds(0.8, 10.0) == pytest.approx(0.01)
    assert LayerWise(80).visible_store_seconds(10.0, 2.0) == pytest.approx(8.0)
