"""docs/HTTP.md names every page, every verdict and every metric that there is, and none that there is not."""

import re
from pathlib import Path

from control_pages import running_pages

from mooncask.daemon.http.pages.json_pages import Pages
from mooncask.daemon.insight.why import ADVICE
from mooncask.daemon.metrics import Metrics

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "HTTP.md").read_text()
OF_A_CLUSTER = {"mooncask_directory_up", "mooncask_replica_blocks", "mooncask_spare_blocks"}
"""What a node that is alone does not have."""


async def test_every_page_stands_in_the_table_with_its_method() -> None:
    async with running_pages() as pages:
        known = set(Pages(pages.daemon.plane).known())
    told = set(re.findall(r"`(GET|POST|DELETE) /-/v1/(\w+)", TEXT)) - {("GET", "status")}
    assert told == known


def test_every_verdict_is_explained() -> None:
    table = TEXT.partition("| verdict |")[2].partition("\n\n")[0]
    told = {word for row in table.splitlines()[2:] for word in row.split("|")[1].replace(",", " ").split()}
    assert told == {"hit", *ADVICE}


async def test_every_metric_with_a_name_in_it_exists() -> None:
    async with running_pages() as pages:
        text = Metrics(pages.daemon.plane, {}).gather().text().decode()
    exported = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    told = set(re.findall(r"`(mooncask_[a-z_]+)`", TEXT))
    assert len(told) > 15 and told - exported - OF_A_CLUSTER == set()
