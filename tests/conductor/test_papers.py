"""The papers' numbers: what can be reached is reached, and the page is written whole or not at all."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from cluster_traces import conversation_trace

from mooncask.conductor.papers import conversation, costs, overload
from mooncask.conductor.papers.command import write_page
from mooncask.conductor.papers.figures import ALSO, FIGURES, find_figure
from mooncask.conductor.papers.report import Figure, Line, as_markdown
from mooncask.conductor.papers.traces import LocalTraces
from mooncask.conductor.traces.request import Request
from mooncask.errors import BadArgument


class Traces:
    """The public trace, or a skip."""

    def conversation(self) -> Sequence[Request]:
        return conversation_trace()

    def synthetic(self) -> Sequence[Request] | None:
        return None


def ratios(figure: Figure) -> dict[str, float]:
    return {line.what: line.ratio for line in figure.lines if line.ratio is not None}


def test_a_bare_number_means_fast25_and_twins_share_a_figure() -> None:
    assert find_figure("5")[0] == "fast25-5" and find_figure("7")[0] == "fast25-1"
    assert find_figure("arx-10")[0] == "arx-9"
    assert set(ALSO.values()) <= set(FIGURES)


def test_an_unknown_figure_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadArgument, match="fast25-5"):
        find_figure("99")


def test_equation_2_and_figure_14_agree_where_they_should() -> None:
    assert all(0.97 < ratio < 1.03 for ratio in ratios(costs.equation_2(Traces())).values())
    fitted = {w: r for w, r in ratios(costs.figure_14(Traces())).items() if "no prefix" in w or "decode" in w}
    assert len(fitted) == 10 and all(0.94 < ratio < 1.06 for ratio in fitted.values())


def test_layer_wise_storing_hardly_grows_with_length() -> None:
    lines = {line.what: line.ours for line in costs.layer_wise(Traces()).lines}
    assert lines["layer-wise store s, 128k"] < 0.05 * lines["serial store s, 128k"]


def test_table_2_is_exact() -> None:
    found = ratios(conversation.table_2(Traces()))
    assert found.pop("cache ratio") == pytest.approx(0.916, abs=0.001)
    assert all(ratio == pytest.approx(1, abs=0.002) for ratio in found.values())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_figure_8_is_within_3_per_cent_for_mooncake_and_vllm() -> None:
    found = ratios(conversation.figure_8(Traces()))
    for what in ("Mooncake, 8 nodes x 3 M tokens", "Mooncake, unlimited cache", "vLLM", "vLLM, prefix caching"):
        assert found[what] == pytest.approx(1, abs=0.03)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_figure_5_s_ratios_are_within_15_per_cent() -> None:
    found = {what: ratio for what, ratio in ratios(conversation.figure_5(Traces())).items() if " / " in what}
    assert len(found) == 3 and all(0.85 < ratio < 1.15 for ratio in found.values())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_table_3_s_ordering_holds() -> None:
    rejected = {line.what: line.ours for line in overload.table_3(Traces()).lines}
    early = rejected["rejected, early, without a check after the prefill"]
    assert early < 0.95 * rejected["rejected, baseline"]
    assert rejected["rejected, predicted, without a check after the prefill"] < early


def test_a_trace_that_is_not_there_is_named_with_status_2(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="MOONCASK_CONVERSATION_TRACE") as refused:
        LocalTraces(tmp_path / "absent.jsonl").conversation()
    assert refused.value.exit_code == 2


def test_a_line_shows_ours_the_published_value_and_the_ratio() -> None:
    figure = Figure("x", "title", "setting", [Line("a", 2.0, 4.0, "word"), Line("b", 12_345.6)], [], "verdict")
    text = as_markdown(figure, 1.0)
    assert "| a | 2 | 4 | 0.5 | word |" in text and "| b | 12,346 | - | - |  |" in text and "verdict" in text


def test_the_page_has_every_figure_and_its_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra: pip install 'mooncask[papers]'")
    said: list[str] = []
    page = write_page(tmp_path / "papers", Traces(), ["fast25-eq2", "fast25-14"], said.append)
    assert "## fast25-eq2" in page.read_text() and len(said) == 2
    assert sorted(p.name for p in page.parent.iterdir()) == ["README.md", "fast25-14.png"]


def test_a_figure_that_fails_leaves_the_old_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra: pip install 'mooncask[papers]'")
    page = write_page(tmp_path, Traces(), ["fast25-eq2"], lambda text: None)
    before = page.read_text()
    with pytest.raises(BadArgument):
        write_page(tmp_path, LocalTraces(tmp_path / "absent.jsonl"), ["fast25-table2"], lambda text: None)
    assert page.read_text() == before
