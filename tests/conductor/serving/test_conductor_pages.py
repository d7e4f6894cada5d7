"""The Conductor's pages without workers: who may see them, metrics and their texts, what `why` says of each kind of end."""

import dataclasses
import re
import time
from collections import Counter
from pathlib import Path

import pytest
import requests
from conductor_process import ConductorProcess
from prometheus_client.parser import text_string_to_metric_families

from mooncask.client.worker_api import Hashing, Node, Registration, Report, Role, Sampling, Step
from mooncask.conductor.scheduling.facts import Slo
from mooncask.conductor.serving.config import Config, secret_of
from mooncask.conductor.serving.dispatch.dispatcher import LiveDispatcher
from mooncask.conductor.serving.dispatch.history import Candidate, Decision
from mooncask.conductor.serving.dispatch.policy_table import PolicySettings
from mooncask.conductor.serving.job import Job
from mooncask.conductor.serving.main import dispatching
from mooncask.conductor.serving.pages.access import PageAccess
from mooncask.conductor.serving.pages.metric_texts import COUNTERS, GAUGES, HISTOGRAMS, PREFIX
from mooncask.conductor.serving.pages.metrics import Buckets, ConductorMetrics
from mooncask.conductor.serving.pages.pages import Pages, Told
from mooncask.conductor.serving.pages.rows import calibration_row, request_page
from mooncask.errors import AccessDenied, Overloaded
from mooncask.tools.why_request import story

DOCS = Path(__file__).resolve().parents[3] / "docs" / "CONDUCTOR-PAGES.md"
SETTINGS = PolicySettings("cache-aware", "predicted", 1.0, 1.5, {"low": Slo(9.0, 0.2), "high": Slo(1.0, 0.1)}, "low")


def registration(name: str, role: Role) -> Registration:
    hashing = Hashing(namespace="n", fingerprint="", tenant_salt="", hash="sha256", block_tokens=16, block_bytes=1024)
    return Registration(
        name=name,
        incarnation="1",
        address="http://127.0.0.1:1",
        role=role,
        model="m",
        family={},
        hashing=hashing,
        node=Node(name="n1"),
        positions_max=2048,
        slots=4,
        prefill_tokens_per_second=1000.0,
    )


def decision(name: str, **more: object) -> Decision:
    given: dict[str, object] = {"model": "m", "tenant": "t", "service_class": "low", "max_tokens": 8, **more}
    return Decision(id=name, at=1.0, prompt_tokens=100, **given)  # type: ignore[arg-type]


def pages_over(dispatcher: LiveDispatcher) -> Pages:
    told = Told("0", lambda: False, lambda: {"t": {"tokens a day": (5, 10)}})
    metrics = ConductorMetrics(dispatcher, told.quotas, Counter({"t": 2}))
    return Pages(dispatcher, SETTINGS, metrics, PageAccess(""), told)


async def test_every_metric_has_a_text_and_stands_in_the_docs() -> None:
    async with dispatching(Config()) as dispatcher:
        pages = pages_over(dispatcher)
        for role in Role:
            dispatcher.pools.register(registration(role.value, role), 0.0)
            steps = [Step(1, 100, 0.01)]
            dispatcher.pools.report(Report(name=role.value, incarnation="1", role=role, steps=steps), 0.0)
        _end(
            dispatcher,
            decision("a", ttft=0.4, matched_tokens=64, cached_tokens=96, output_tokens=7, attempts=2),
            "stop",
        )
        rejected = decision("b")
        dispatcher.history.add(rejected)
        dispatcher.history.rejected(rejected, "predicted TTFT over its SLO", 3.0)
        text = pages.metrics.text().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    expected = [*COUNTERS, *HISTOGRAMS, *GAUGES]
    assert sorted(name for name in families if name.startswith(PREFIX)) == sorted(PREFIX + name for name in expected)
    assert all(families[PREFIX + name].documentation and families[PREFIX + name].samples for name in expected)
    documented = re.findall(r"^\| `([a-z_]+)` \| [a-z, ]*\|", DOCS.read_text(), re.MULTILINE)
    assert sorted(documented) == sorted([*(f"{name}_total" for name in COUNTERS), *HISTOGRAMS, *GAUGES])
    values = {(s.name, *sorted(s.labels.values())): s.value for family in families.values() for s in family.samples}
    assert values[PREFIX + "cached_tokens_total", "m"] == 64
    assert values[PREFIX + "retries_total", "m"] == 1
    assert values[PREFIX + "rejections_total", "low", "m", "ttft"] == 1
    assert values[PREFIX + "requests_total", "low", "m", "rejected"] == 1


def _end(dispatcher: LiveDispatcher, told: Decision, how: str) -> None:
    dispatcher.history.add(told)
    dispatcher.history.ended(told, how, 1.0)


async def test_a_request_too_many_is_counted_and_told_with_its_reason() -> None:
    async with dispatching(Config()) as dispatcher:
        pages = pages_over(dispatcher)
        dispatcher.pools.register(registration("d", Role.DECODE), time.monotonic())
        dispatcher.limits = dataclasses.replace(dispatcher.limits, running_max=0)
        with pytest.raises(Overloaded):
            await anext(dispatcher.run(Job("r", "m", [1, 2, 3], 4, Sampling())))
        (told,) = pages.overview().requests
        assert told.rejected == "0 requests are being served"
        assert pages.overview().rejections == {"full": 1}


async def test_every_page_stands_in_the_docs() -> None:
    text = DOCS.read_text()
    async with dispatching(Config()) as dispatcher:
        from aiohttp import web

        app = web.Application()
        pages_over(dispatcher).add_to(app)
        paths = {resource.canonical for resource in app.router.resources()}
    for path in paths - {"/-", "/-/", "/-/ui", "/-/ui/{name}"}:
        shown = path.replace("{request}", "ID").replace("{worker}", "NAME")
        assert f"{shown}" in text, path
    assert secret_of(Config().server) == ""


def test_a_histogram_counts_each_value_once_and_all_below_each_bound() -> None:
    buckets = Buckets((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        buckets.observe(value)
    assert buckets.cumulative() == [("0.1", 2.0), ("1", 3.0), ("+Inf", 4.0)]
    assert buckets.total == pytest.approx(7.65)


def test_calibration_says_how_far_off_and_to_which_side() -> None:
    row = calibration_row([(2.0, 1.0), (0.5, 1.0), (1.0, 0.0)])
    assert (row.error, row.bias) == (0.75, 0.25)
    assert row.pairs == [(2.0, 1.0), (0.5, 1.0)]
    assert calibration_row([]).error == 0


# --- access ---

HERE = {"Host": "127.0.0.1:9471"}


@pytest.mark.parametrize(
    ("remote", "headers"),
    [
        ("127.0.0.1", HERE),
        ("::1", {"Host": "[::1]:9471"}),
        ("127.0.0.1", {"Host": "localhost"}),
        ("127.0.0.1", {**HERE, "Origin": "http://127.0.0.1:9471"}),
    ],
)
def test_without_a_token_this_machine_sees_the_pages(remote: str, headers: dict[str, str]) -> None:
    PageAccess("").check(remote, headers)


@pytest.mark.parametrize(
    ("remote", "headers"),
    [
        ("10.0.0.1", HERE),
        ("", HERE),
        ("127.0.0.1", {}),
        ("127.0.0.1", {"Host": "rebound.example:9471"}),
        ("127.0.0.1", {**HERE, "Origin": "http://127.0.0.1:9999"}),
        ("127.0.0.1", {**HERE, "Origin": "null"}),
        ("127.0.0.1", {**HERE, "X-Forwarded-For": "127.0.0.1"}),
    ],
)
def test_without_a_token_nobody_else_sees_them(remote: str, headers: dict[str, str]) -> None:
    with pytest.raises(AccessDenied):
        PageAccess("").check(remote, headers)


def test_with_a_token_whoever_has_it_sees_them_and_nobody_else() -> None:
    access = PageAccess("s3cret")
    access.check("10.0.0.1", {"Host": "conductor.example", "Authorization": "Bearer s3cret"})
    for headers in ({}, HERE, {"Authorization": "Bearer s3cre"}, {"Authorization": "Bearer s3cret\udcff"}):
        with pytest.raises(AccessDenied):
            access.check("127.0.0.1", headers)


# --- why ---

NEAR, FAR = Candidate("near", "n1", 0.5, 64, 1.5), Candidate("far", "n2", 0.0, 0, 1.2)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            decision("r", candidates=[NEAR, FAR], prefill_worker="far", decode_worker="d"),
            ["-> far on n2", "prefill on far: the earliest first token; decode on d", "it is still running"],
        ),
        (decision("r", inline=True, matched_tokens=80, decode_worker="d"), ["d computes the 20 missing tokens itself"]),
        (
            decision(
                "r", candidates=[NEAR], rejected="no decode node has room", retry_after_seconds=7.0, ended="rejected"
            ),
            ["rejected, admission predicted: no decode node has room", "9 s to the first token", "again in 7 s"],
        ),
        (
            decision("r", decode_worker="d", failures=["worker d is gone"], ended="stop", ttft=2.0, output_tokens=1),
            ["attempt 1 failed: worker d is gone", "ended by stop", "with 1 token"],
        ),
        (
            decision("r", candidates=[NEAR, FAR], prefill_worker="near", decode_worker="d", predicted_ttft=1.1),
            ["the earliest first token (1.100 s) with the longest prefix fetched"],
        ),
    ],
)
def test_why_says_in_words_what_became_of_a_request(told: Decision, words: list[str]) -> None:
    text = "\n".join(story(request_page(told, SETTINGS)))
    for word in words:
        assert word in text, text


def test_apply_on_the_command_line_is_that_of_the_plan(tmp_path: Path) -> None:
    assert not Config().plan.apply
    with ConductorProcess.start(tmp_path, "", words=["--apply"]) as conductor:
        assert requests.get(f"{conductor.url}/-/v1/plan", timeout=10).json()["apply"] is True
