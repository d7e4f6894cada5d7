"""The Prometheus rules: valid, firing on what they are for, about metrics that exist, and each explained in OPERATIONS.md."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from http_door import running_http

ROOT = Path(__file__).parents[2]
FILES = ROOT / "packaging" / "prometheus"
RULES = FILES / "mooncask.rules.yml"
SECONDS = 60.0


OF_A_CLUSTER = {"mooncask_directory_up", "mooncask_peer_failures_total"}
"""What alerts and OPERATIONS.md name and a node that is alone does not have."""

OF_A_BUCKET = {"mooncask_cold_up"}
"""What an alert is about and a node without cold.bucket does not have: a gauge, which needs no first value."""


def promtool(*arguments: str, folder: Path = ROOT) -> None:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip('promtool is not installed (Debian\'s prometheus); "make test-deps" as root installs it')
    run = subprocess.run([found, *arguments], cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def alerts() -> list[str]:
    return re.findall(r"- alert: (\w+)", RULES.read_text())


def test_the_rules_are_valid() -> None:
    promtool("check", "rules", str(RULES))


def test_the_scrape_configuration_is_valid() -> None:
    promtool("check", "config", "prometheus.yml", folder=FILES)


def test_alerts_fire_on_what_they_are_for() -> None:
    promtool("test", "rules", "mooncask.rules.test.yml", folder=Path(__file__).parent)


async def test_every_metric_in_them_is_there_from_the_start() -> None:
    """increase() sees no first fault of a counter that is not there before it."""
    async with running_http({"tenants.a.quota": 1 << 30}) as http:
        _, text, _ = await http.ask("GET", "/-/metrics")
    exported = set(re.findall(r"^# TYPE (\w+)", text.decode(), re.MULTILINE))
    exported |= {f"{name}_bucket" for name in exported}
    used = set(re.findall(r"(?<![\w:])(?:mooncask|process)_\w+", "\n".join(expressions())))
    assert len(used) > 15 and used - exported == OF_A_BUCKET | OF_A_CLUSTER
    told = set(re.findall(r"`(mooncask_\w+)", (ROOT / "docs" / "OPERATIONS.md").read_text()))
    assert len(told) > 10 and told - exported <= OF_A_CLUSTER


def expressions() -> list[str]:
    """The text of each rule's expr, over one line or several."""
    found = re.findall(r"expr: (?:\|\n((?: {10,}.*\n)+)|(.*)\n)", RULES.read_text())
    assert len(found) == RULES.read_text().count("expr:")
    return [several or one for several, one in found]


@pytest.mark.parametrize("alert", alerts())
def test_the_alert_is_explained(alert: str) -> None:
    text = (ROOT / "docs" / "OPERATIONS.md").read_text()
    assert f"`{alert}`" in text, f"docs/OPERATIONS.md does not say what to do at {alert}"


def test_every_alert_is_one_that_is_tried() -> None:
    tried = (Path(__file__).parent / "mooncask.rules.test.yml").read_text()
    untried = {alert for alert in alerts() if f"alertname: {alert}\n" not in tried}
    assert untried == {"MooncaskNotReady", "MooncaskDescriptorsShort"}, "plain comparisons need no example"
