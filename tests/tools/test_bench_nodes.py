"""`mooncask bench peers --quick` from end to end: two daemons, every measure beside its limit, and nothing stays behind."""

import json
from pathlib import Path

from typer.testing import CliRunner

from mooncask.tools.bench.following_run import FOLLOWED, PULLED
from mooncask.tools.bench.nodes_run import BARE, BARE_CACHED, FASTER, FULL, GET, GET_SMALL, MOONCAKE
from mooncask.tools.main import app


def test_gets_from_a_peer_are_measured_beside_a_bare_socket(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    result = CliRunner().invoke(app, ["bench", "peers", "--quick", "--json", str(file)])
    assert result.exit_code == 0, (result.output, result.exception)
    found = json.loads(file.read_text())
    measures = {measure["name"]: measure for measure in found["measures"]}
    assert measures.keys() >= {GET, GET_SMALL, BARE, BARE_CACHED, FOLLOWED, PULLED}
    assert measures[GET]["limit"] == measures[GET_SMALL]["limit"] == BARE
    skipped, facts = [one["what"] for one in found["skipped"]], [fact["name"] for fact in found["facts"]]
    assert (MOONCAKE in skipped) != (FASTER in facts), "measured, or said why not"


def test_the_full_run_is_held_against_what_it_must_reach() -> None:
    assert FULL.targets.keys() == {GET, GET_SMALL}
    assert [(batch.blocks, batch.block_bytes >> 10) for batch in FULL.batches] == [(32, 2048), (32, 256)]
