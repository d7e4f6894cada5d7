"""The GPU check without a GPU: all of it but the CUDA calls runs on the CPU, and where it can check nothing it says so."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import json
from pathlib import Path

import gpu_check
from gpu_hbm import HbmSizes, check_hbm


def test_every_part_runs_on_the_cpu_and_the_report_has_its_figures(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    assert gpu_check.main(["--device", "cpu", "--small", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert report["ok"] and report["failed"] == [] and report["device"] == "cpu" and report["gpu"] == "none"
    assert (
        report["hbm"]["blocks_promoted"] == 6 and report["hbm"]["blocks_evicted"] == 2 and report["hbm"]["wrong"] == 0
    )
    assert report["hbm"]["read_by_other_process"] == 0, "memory of the CPU has no handle"
    assert min(report["copies"][name] for name in ("pinned_in", "pinned_out", "tier_in", "tier_out")) > 0
    assert [(one["layout"], one["copies_a_block"]) for one in report["vllm"]] == [
        ("LBHNC", 3),
        ("LBNHC", 3),
        ("BLHNC", 1),
    ]
    assert all(one["wrong"] == 0 and one["beside_computing"] > 0 and one["load"] > 0 for one in report["vllm"])
    assert [one["tokens"] for one in report["pipeline"]] == [40, 100]
    assert all(one["same_answer"] and one["hit_tokens"] >= 32 for one in report["pipeline"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_nothing_has_failed(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([]) == 0
    assert "skipped: torch sees no CUDA GPU" in capsys.readouterr().out


def test_a_part_that_fails_is_told_and_the_others_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_hbm.PROMOTED_SECONDS", -1.0)
    report = gpu_check.run("cpu", small=True)
    assert report["failed"] == ["hbm"] and not report["ok"]
    assert "not promoted" in report["hbm"]["failed"] and report["pipeline"][0]["same_answer"]


def test_a_device_that_can_hold_only_some_blocks_gives_up_the_oldest() -> None:
    found = check_hbm("cpu", HbmSizes(16 << 10, 8))
    assert (found.blocks_stored, found.blocks_evicted) == (12, 4)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_everything_is_as_it_should_be(tmp_path: Path) -> None:
    assert gpu_check.main(["--json", str(tmp_path / "report.json")]) == 0
