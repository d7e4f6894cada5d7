"""The metrics page: read by Prometheus' own tool, values that are true, and bounded however many namespaces there are."""

import asyncio
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from child_processes import until
from control_pages import open_kv
from http_door import Http, running_http
from local_daemon import running_daemon
from prometheus_client.parser import text_string_to_metric_families
from raw_client import key, payload

from mooncask.client import wire
from mooncask.daemon import metrics as metrics_module
from mooncask.daemon.metric_texts import COUNTERS
from mooncask.daemon.metrics import OTHERS, Metrics
from mooncask.tiers.block import WriteMode
from mooncask.tiers.namespace import NamespaceSpec

ROOT = Path(__file__).resolve().parents[2]
Labels = dict[str, str]


async def samples(http: Http) -> dict[str, list[tuple[Labels, float]]]:
    """All samples by name."""
    _, text, _ = await http.ask("GET", "/-/metrics")
    found: dict[str, list[tuple[Labels, float]]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def value(found: dict[str, list[tuple[Labels, float]]], name: str, **labels: str) -> float:
    fitting = [number for has, number in found[name] if labels.items() <= has.items()]
    assert len(fitting) == 1, (name, labels, found[name])
    return fitting[0]


async def busy(http: Http) -> None:
    """A bit of everything that is counted."""
    client = await http.daemon.client()
    namespace = await open_kv(client, "kv-a")
    await client.put(namespace, {key(1): payload(1), key(2): payload(2)})
    await client.ask(wire.Matched, wire.Match, namespace, [key(1), key(2), key(3), key(4)])
    await client.acquire(namespace, [key(1), key(2)])
    await http.ask("PUT", "/photos")
    await http.ask("PUT", "/photos/a", data=payload(3))
    await http.ask("GET", "/photos/a")
    await http.ask("DELETE", "/photos/a")
    await until(lambda: http.daemon.plane.insight.traffic.tier_tokens["dram"] > 0)
    await client.close()


async def test_promtool_finds_nothing_to_complain_of() -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed: it is in Debian's package prometheus")
    async with running_http({"tenants.astro.quota": "1GiB"}) as http:
        await busy(http)
        _, text, _ = await http.ask("GET", "/-/metrics")
    done = await asyncio.to_thread(
        subprocess.run, ["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout.decode() + done.stderr.decode()) == (0, "")


async def test_hit_rates_are_counted_in_tokens_by_namespace_and_tier() -> None:
    async with running_http() as http:
        await busy(http)
        found = await samples(http)
        assert value(found, "mooncask_prefix_requested_tokens_total", namespace="kv-a") == 64
        assert value(found, "mooncask_prefix_hit_tokens_total", namespace="kv-a") == 32
        assert value(found, "mooncask_prefix_hit_tier_tokens_total", tier="dram") == 32
        assert value(found, "mooncask_prefix_hit_tier_tokens_total", tier="nvme") == 0


async def test_flows_departures_and_times_are_told_by_what_they_are_of() -> None:
    async with running_http() as http:
        await busy(http)
        async with asyncio.timeout(10.0):  # some of it is told a moment after its answer
            found = await samples(http)
            while value(found, "mooncask_http_requests_total", method="PUT", status="200") < 2 or not (
                value(found, "mooncask_flow_blocks_total", kind="hit", tier="dram") == 3
                and value(found, "mooncask_flow_bytes_total", kind="http_out") >= len(payload(3))
            ):
                await asyncio.sleep(0.02)
                found = await samples(http)
        assert value(found, "mooncask_flow_blocks_total", kind="hit", tier="dram") == 3, "two acquired, one GET"
        assert value(found, "mooncask_flow_bytes_total", kind="http_in") == len(payload(3))
        assert value(found, "mooncask_flow_bytes_total", kind="http_out") >= len(payload(3))
        assert value(found, "mooncask_departures_total", reason="deleted", tier="dram") == 1
        for operation in ("match", "acquire_memory", "reserve", "commit"):
            assert value(found, "mooncask_request_duration_seconds_count", operation=operation) >= 1
            assert value(found, "mooncask_request_duration_seconds_sum", operation=operation) > 0
        assert value(found, "mooncask_http_request_duration_seconds_count", operation="PutObject") == 1
        assert value(found, "mooncask_http_requests_total", method="PUT", status="200") == 2
        buckets = [
            (h["le"], n) for h, n in found["mooncask_request_duration_seconds_bucket"] if h["operation"] == "match"
        ]
        assert buckets[-1][0] == "+Inf" and [n for _, n in buckets] == sorted(n for _, n in buckets)
        assert found["process_resident_memory_bytes"][0][1] > 1 << 20


async def test_disk_times_are_of_the_disk(tmp_path: Path) -> None:
    async with running_http({"nvme.path": str(tmp_path / "nvme")}) as http:
        await http.ask("PUT", "/photos")
        await http.ask("PUT", "/photos/a", data=payload(3))
        found = await samples(http)
        assert value(found, "mooncask_nvme_operation_duration_seconds_count", operation="write") == 1
        assert value(found, "mooncask_nvme_operation_duration_seconds_count", operation="read") == 0
        assert value(found, "mooncask_flow_bytes_total", kind="write", tier="nvme") >= len(payload(3))


async def test_beyond_a_number_of_namespaces_the_younger_ones_share_a_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "NAMESPACES_SHOWN", 2)
    async with running_daemon() as daemon:
        client = await daemon.client()
        for number in range(4):
            namespace = await open_kv(client, f"kv-{number}")
            await client.put(namespace, {key(1): payload(1)})
            await client.ask(wire.Matched, wire.Match, namespace, [key(1)])
        text = Metrics(daemon.plane, {}).gather().text().decode()
        blocks = re.findall(r'mooncask_namespace_blocks{.*namespace="([^"]*)".*} (\S+)', text)
        assert blocks == [("kv-0", "1.0"), ("kv-1", "1.0"), (OTHERS, "2.0")]
        hits = re.findall(r'mooncask_prefix_hit_tokens_total{namespace="([^"]*)"} (\S+)', text)
        assert hits == [("kv-0", "16.0"), ("kv-1", "16.0"), (OTHERS, "32.0")]
        await client.close()


async def test_a_thousand_namespaces_cost_a_page_that_is_made_quickly() -> None:
    async with running_daemon() as daemon:
        for number in range(1000):
            await daemon.store.open_namespace(NamespaceSpec(f"kv-{number:04}", mode=WriteMode.MEMORY, fingerprint=b"f"))
        gathered = Metrics(daemon.plane, {}).gather()
        assert len(gathered.text()) < 1 << 19


def test_every_counter_in_the_sources_says_what_it_counts() -> None:
    found: set[str] = set()
    for room in ("daemon", "tiers"):
        for path in (ROOT / room).rglob("*.py"):
            found |= set(re.findall(r'counters\["([a-z_]+)"\]', path.read_text()))
    assert found - set(COUNTERS) == set()
    assert set(COUNTERS) - found == {"forgotten_dram", "forgotten_nvme", "forgotten_expired"}, "no longer counted"
