"""Wrong clusters and traces: one line, exit status 2, nothing written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_traces import chats

from mooncask.conductor.simulator.cluster import Cluster, load_cluster, parse_cluster
from mooncask.conductor.simulator.simulate import simulate
from mooncask.conductor.traces.jsonl import write_trace
from mooncask.conductor.traces.request import Request
from mooncask.errors import BadArgument

GOOD = "prefill_nodes = 1\ndecode_nodes = 1\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("prefill_nodes = 0\ndecode_nodes = 4", "prefill_nodes = 0"),
        ("prefill_nodes = 4", "decode_nodes = 0"),
        ("", "prefill_nodes = 0"),
        (GOOD + "coupled_nodes = 2", "coupled_nodes = 2"),
        (GOOD + "[slo]\nttft_seconds = 0", "$.slo.ttft_seconds"),
        (GOOD + "[slo]\ntbt_metric = 'p99'", "$.slo.tbt_metric"),
        (GOOD + "[scheduling]\nplacement = 'kvcache-centrik'", "did you mean 'kvcache-centric'"),
        (GOOD + "[scheduling]\nadmission = 'erly'", "did you mean 'early'"),
        (GOOD + "[cache]\npolicy = 'lruu'", "did you mean"),
        (GOOD + "[model]\nname = 'llama9'", "llama3-70b"),
        (GOOD + "[model]\ngpus_per_node = 1", "no room for one block"),
        (GOOD + "nodes = 3", "nodes"),
        ("coupled_nodes = 2\n[scheduling]\nadmission = 'early'", "scheduling.admission = 'early'"),
        ("coupled_nodes = 2\nfirst_token = 'decode'", "nothing is handed over"),
        ("prefill_nodes = ", "not TOML"),
    ],
)
def test_a_wrong_cluster_is_refused_in_one_line_that_names_the_field(text: str, named: str) -> None:
    with pytest.raises(BadArgument) as refused:
        parse_cluster(text, "c.toml")
    assert named in str(refused.value) and "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


def test_a_cluster_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match=r"absent\.toml"):
        load_cluster(tmp_path / "absent.toml")


def test_the_example_clusters_are_right() -> None:
    for path in (Path(__file__).parents[2] / "docs" / "clusters").glob("*.toml"):
        assert load_cluster(path).notation in ("[8P+8D]", "[16M]")


def test_a_request_that_no_node_can_hold_is_refused_before_anything_runs() -> None:
    giant = Request(0, 5_000_000, 10, tuple(range(9766)))
    with pytest.raises(BadArgument, match="5000010 tokens"):
        simulate(Cluster(prefill_nodes=1, decode_nodes=1), [giant])


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(BadArgument, match="at least one request"):
        simulate(Cluster(prefill_nodes=1, decode_nodes=1), [])


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from mooncask.tools.main import app; sys.argv = ['mooncask', *sys.argv[1:]]; app()"
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(
        command,
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"COLUMNS": "200"},
    )


@pytest.mark.parametrize("trouble", ["cluster", "trace", "speed", "out"])
def test_the_command_ends_with_status_2_and_writes_nothing(tmp_path: Path, trouble: str) -> None:
    cluster, trace, out = tmp_path / "c.toml", tmp_path / "t.jsonl", tmp_path / "out"
    cluster.write_text(GOOD if trouble != "cluster" else GOOD + "[slo]\ntbt_seconds = 0")
    write_trace(trace, chats(5, 1))
    if trouble == "trace":
        trace.write_text('{"timestamp": 5}\n')
    if trouble == "out":
        out.write_text("a file")
    speed = "0" if trouble == "speed" else "1"
    done = run(tmp_path, "simulate", str(cluster), str(trace), "--speed", speed, "--out", str(out))
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert not out.is_dir() and not done.stdout


def test_a_right_cluster_and_trace_give_json_and_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra: pip install 'mooncask[papers]'")
    cluster, trace, out = tmp_path / "c.toml", tmp_path / "t.jsonl", tmp_path / "out"
    cluster.write_text(GOOD)
    write_trace(trace, chats(5, 1))
    done = run(tmp_path, "simulate", str(cluster), str(trace), "--json", "--out", str(out))
    assert done.returncode == 0 and '"goodput"' in done.stdout
    assert sorted(p.name for p in out.iterdir()) == [
        "load.png",
        "rejected.png",
        "replicas.png",
        "summary.json",
        "tbt.png",
        "ttft.png",
    ]
