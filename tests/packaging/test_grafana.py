"""The Grafana dashboard: every query is one that Prometheus understands, about metrics that the daemon has."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from http_door import running_http

DASHBOARD = Path(__file__).parents[2] / "packaging" / "grafana" / "mooncask.json"
VARIABLES = {"$__rate_interval": "5m", "$instance": ".*", "$job": ".*"}
OF_A_CLUSTER = {
    "mooncask_directory_up",
    "mooncask_peer_blocks_pulled_total",
    "mooncask_peer_failures_total",
    "mooncask_peer_linked",
    "mooncask_peer_not_there_total",
    "mooncask_peer_received_bytes_total",
}
"""What a node that is alone does not have."""
MAY_BE_ABSENT = {"mooncask_tenant_quota_bytes", *OF_A_CLUSTER}
"""The first where no tenant has a quota."""


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel.get("targets", [])]


def test_every_query_is_valid(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip('promtool is not installed (Debian\'s prometheus); "make test-deps" as root installs it')
    rules = []
    for number, query in enumerate(queries()):
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        assert "$" not in query
        rules.append({"record": f"panel:{number}", "expr": query})
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))  # JSON is YAML
    run = subprocess.run(
        [promtool, "check", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


async def test_every_metric_it_asks_for_is_there() -> None:
    async with running_http() as http:
        _, text, _ = await http.ask("GET", "/-/metrics")
    exported = set(re.findall(r"^# TYPE (\w+)", text.decode(), re.MULTILINE))
    exported |= {f"{name}_{part}" for name in exported for part in ("bucket", "count", "sum")}
    used = set(re.findall(r"(?:mooncask|process)_\w+", "\n".join(queries())))
    assert len(used) > 15
    assert used - exported - MAY_BE_ABSENT == set()


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & own, panel["title"]
        assert max(x for x, _ in own) < 24
        cells |= own
    assert len({panel["id"] for panel in panels()}) == len(panels())
