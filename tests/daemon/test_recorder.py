"""The recorder: the daemon's own requests as a trace that replay and planner read, without anything that leads back to a key."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest
from daemon_process import DaemonProcess
from trace_client import ask_for, block_key
from typer.testing import CliRunner

from mooncask.client.local import LocalClient
from mooncask.conductor.replay.policies import ReplayOptions, replay_named
from mooncask.conductor.traces.jsonl import read_trace
from mooncask.conductor.traces.prompt import Numbers
from mooncask.conductor.traces.request import Request
from mooncask.conductor.traces.workloads import Chats
from mooncask.daemon import recorder as recorder_module
from mooncask.daemon.config import RecorderSection
from mooncask.daemon.insight.lookups import Lookup, LookupKind
from mooncask.daemon.prompts import Prompt
from mooncask.daemon.recorder import Recorder, Sampler, TraceFile
from mooncask.errors import ConfigError
from mooncask.tiers.block import NO_HINT
from mooncask.tiers.namespace import Namespace, NamespaceSpec
from mooncask.tools.main import app

FAMILY = {"model": "m", "block_tokens": "16"}
KV = Namespace(1, NamespaceSpec("kv-a", family=FAMILY, fingerprint=b"model"))


def prompt(seconds: float, numbers: range, conversation: int = 0, output_tokens: int = 0) -> Prompt:
    keys = [block_key(number) for number in numbers]
    made = Prompt(seconds, 1, b"model", FAMILY, keys, b"1", 0, seconds)
    made.conversation, made.output_tokens = conversation, output_tokens
    return made


def trace_file(path: Path, **settings: int) -> TraceFile:
    file = TraceFile(msgspec.structs.replace(RecorderSection(path=str(path)), **settings))
    file.open()
    return file


def some_chats(seconds: float = 300) -> Iterator[Request]:
    """Short ones of 512-token blocks."""
    return Chats(per_second=1.0, first_tokens=1500, assistants=3).requests(seconds, Random(5), Numbers())


# --- the file --------------------------------------------------------------------------------------------------------


def test_a_record_has_the_form_of_a_trace(tmp_path: Path) -> None:
    file = trace_file(tmp_path / "t.jsonl")
    file.write([prompt(100.0, range(3), output_tokens=7), prompt(102.5, range(2), conversation=9)])
    file.close()
    first, second = read_trace(tmp_path / "t.jsonl")
    assert (first.timestamp_ms, first.input_length, first.output_length, first.turn) == (0, 48, 7, 0)
    assert (second.timestamp_ms, second.input_length, second.output_length) == (2500, 32, 0)
    assert first.hash_ids[:2] == second.hash_ids
    assert len(set(first.hash_ids)) == 3
    assert max(first.hash_ids) < 1 << 48
    assert first.conversation == 0
    assert second.conversation not in (0, 9)
    assert oct((tmp_path / "t.jsonl").stat().st_mode & 0o777) == "0o600"


def test_nothing_in_a_file_leads_back_to_a_key_or_to_another_file(tmp_path: Path) -> None:
    """The salt is random and nowhere: the same prompt has other numbers in each file, and no key's bytes are in any."""
    ids = []
    for name in ("a", "b"):
        file = trace_file(tmp_path / name)
        file.write([prompt(0.0, range(20))])
        file.close()
        (request,) = read_trace(tmp_path / name)
        ids.append(request.hash_ids)
        text = (tmp_path / name).read_text()
        assert not any(block_key(number).hex() in text for number in range(20))
        numbers = {int.from_bytes(block_key(n)[start : start + 6], "big") for n in range(20) for start in range(11)}
        assert numbers.isdisjoint(request.hash_ids)
    assert set(ids[0]).isdisjoint(ids[1])


def test_equal_chains_of_two_models_have_different_numbers(tmp_path: Path) -> None:
    file = trace_file(tmp_path / "t")
    other = prompt(1.0, range(3))
    other.model = b"another"
    file.write([prompt(0.0, range(3)), other])
    file.close()
    first, second = read_trace(tmp_path / "t")
    assert set(first.hash_ids).isdisjoint(second.hash_ids)


def test_files_are_bounded_in_bytes_and_records(tmp_path: Path) -> None:
    for settings in ({"bytes_max": 8192}, {"records_max": 20}):
        path = tmp_path / next(iter(settings))
        file = trace_file(path, **settings)
        file.write([prompt(number / 10, range(number, number + 5)) for number in range(300)])
        file.close()
        files = [path, path.with_name(path.name + ".1")]
        assert sorted(tmp_path.glob(path.name + "*")) == files
        assert all(each.stat().st_size <= 4096 for each in files) or "records_max" in settings
        requests = [list(read_trace(each)) for each in files]
        assert all(0 < len(each) <= 40 for each in requests)
        assert all(each[0].timestamp_ms == 0 for each in requests)


def test_a_record_too_long_for_a_file_is_left_out(tmp_path: Path) -> None:
    file = trace_file(tmp_path / "t", bytes_max=1024)
    counts = file.write([prompt(0.0, range(100)), prompt(1.0, range(2))])
    file.close()
    assert counts == {"recorder_left_out": 1, "recorder_records": 1}
    assert len(list(read_trace(tmp_path / "t"))) == 1


def test_an_older_file_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    for first in (0, 10):
        file = trace_file(tmp_path / "t")
        file.write([prompt(0.0, range(first, first + 1 + first))])
        file.close()
    assert [len(r.hash_ids) for r in read_trace(tmp_path / "t")] == [11]
    assert [len(r.hash_ids) for r in read_trace(tmp_path / "t.1")] == [1]


# --- too many requests -----------------------------------------------------------------------------------------------


def test_above_the_rate_whole_conversations_are_left_out() -> None:
    """100 requests a second of 2,000 conversations that all begin alike, where 20 may be written."""
    sampler = Sampler(rate_max=20)
    kept = Counter[int]()
    for number in range(30_000):
        conversation = number % 2000
        turn = number // 2000
        ids = [1, 2, 3, *(chance_id(conversation, depth) for depth in range(3 + turn))]
        seconds = number / 100
        if sampler.keeps(seconds, ids, 0) and seconds > 100:
            kept[conversation] += 1
    assert sampler.share == 0.125
    assert set(kept.values()) == {10}, "a conversation is there with all its turns, or not at all"
    assert 150 < len(kept) < 400
    assert sum(kept.values()) < 20 * 200


def chance_id(conversation: int, depth: int) -> int:
    return int.from_bytes(block_key(1000 * conversation + depth)[:6], "big")


def test_hints_name_conversations_where_there_are_some() -> None:
    sampler = Sampler(rate_max=1, share=0.5)
    low, high = 1 << 46, 3 << 46
    assert sampler.keeps(0.0, [high], low)
    assert not sampler.keeps(0.0, [low], high)


def test_a_sampled_record_says_so_and_the_next_file_begins_with_more(tmp_path: Path) -> None:
    file = trace_file(tmp_path / "t", rate_max=1, records_max=50)
    file.write([prompt(number / 100, range(number, number + 3)) for number in range(200)])
    file.close()
    shares = [json.loads(line).get("share", 1) for line in (tmp_path / "t").read_text().splitlines()]
    assert set(shares) < {1, 0.5, 0.25, 0.125, 0.0625, 0.03125}
    assert min(shares) < 0.5


# --- the recorder ----------------------------------------------------------------------------------------------------


async def test_a_fault_of_the_disk_ends_the_recording_and_nothing_else(tmp_path: Path) -> None:
    """The second record wants a new file, but the name of the older one is taken by a folder."""
    (tmp_path / "t.1").mkdir()
    counters = Counter[str]()
    recorder = await Recorder.open(RecorderSection(path=str(tmp_path / "t"), records_max=1), counters)
    for number in range(2):
        recorder.looked([Lookup(LookupKind.MATCH, KV, [bytes([number]) * 16], 0, NO_HINT, time.monotonic())])
    await recorder.close()
    assert counters["recorder_failed"] == 1
    recorder.looked([Lookup(LookupKind.MATCH, KV, [b"k" * 16], 0, NO_HINT, time.monotonic())])
    assert len(list(read_trace(tmp_path / "t"))) == 1


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"path": "/nowhere/at/all"}, "recorder.path"),
        ({"path": "/"}, "recorder.path"),
        ({"path": "/dev/null"}, "recorder.path"),
        ({"path": "t", "bytes_max": 1000}, "recorder.bytes_max"),
    ],
)
async def test_what_can_not_be_written_is_refused_at_the_start(settings: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        await Recorder.open(RecorderSection(**settings), Counter())  # type: ignore[arg-type]


async def test_more_than_a_disk_takes_is_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "WAITING_MAX", 5)
    counters = Counter[str]()
    recorder = await Recorder.open(RecorderSection(path=str(tmp_path / "t")), counters)
    recorder.looked(
        [Lookup(LookupKind.MATCH, KV, [bytes([number]) * 16], 0, NO_HINT, number / 10) for number in range(12)]
    )
    await recorder.close()
    assert (counters["recorder_records"], counters["recorder_dropped"]) == (5, 7)


# --- a real daemon ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [20_000, 400])
def test_what_a_daemon_records_replays_to_its_own_hit_rate(tmp_path: Path, blocks: int) -> None:
    """With room for all, exactly; with little DRAM within half a point of its policy, leaf-first as the daemon is."""
    path = tmp_path / "recorded.jsonl"
    dram = max(2 << 20, blocks * 4096)
    settings = {"recorder.path": str(path), "dram.capacity": str(dram), "nvme.path": "", "http.enabled": False}
    requests = list(some_chats())
    with DaemonProcess.start(tmp_path, settings) as daemon:
        with LocalClient.connect(daemon.socket_path) as client:
            namespace = client.open_namespace("kv-chats", {"model": "m", "block_tokens": "512"})
            asked, found = ask_for(client, namespace, requests)
        assert daemon.stop() == 0
    recorded = list(read_trace(path))
    assert [len(request.hash_ids) for request in recorded] == [len(request.hash_ids) for request in requests]
    assert [request.output_length for request in recorded] == [request.output_length for request in requests]
    assert all(request.input_length == 512 * len(request.hash_ids) for request in recorded)
    capacity = min(dram // 4096, 1 << 20)
    replayed = replay_named("lru", recorded, capacity, ReplayOptions(leaf_first=True))
    assert replayed.accesses == asked
    if blocks > 1000:
        assert replayed.hits == found
    else:
        assert replayed.hit_rate == pytest.approx(found / asked, abs=0.005)
        assert found < replay_named("lru", recorded, 1 << 20, ReplayOptions()).hits, "the DRAM was too small"


def test_replay_and_plan_read_what_a_daemon_has_recorded(tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    with DaemonProcess.start(tmp_path, {"recorder.path": str(path), "http.enabled": False}) as daemon:
        with LocalClient.connect(daemon.socket_path) as client:
            namespace = client.open_namespace("kv-chats", {"model": "m", "block_tokens": "128"})
            ask_for(client, namespace, some_chats(120))
        assert daemon.stop() == 0
    replay = CliRunner().invoke(app, ["replay", str(path), "--policy", "lru", "--capacity-blocks", "1000", "--json"])
    assert replay.exit_code == 0, replay.output
    found = json.loads(replay.output)
    assert found["hit_rate"] > 0.05
    assert found["token_weighted_hit_rate"] == found["hit_rate"], "all blocks have the 128 tokens that the family says"
    prices = str(Path(__file__).parents[2] / "docs" / "plans" / "prices.toml")
    asked = ["plan", str(path), "--prices", prices, "--slo-ttft", "5", "--slo-tbt", "1", "--policy", "lru", "--json"]
    plan = CliRunner().invoke(app, asked)
    assert plan.exit_code == 0, plan.output
    planned = json.loads(plan.output)
    assert planned["chosen"]["nodes"] >= 1
    assert planned["decode"]["nodes"] >= 1
    assert planned["block_bytes"] == 128 * 327_680


def test_a_daemon_that_was_not_told_to_records_nothing(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path, {"http.enabled": False, "nvme.path": ""}) as daemon:
        before = sorted(tmp_path.iterdir())
        with LocalClient.connect(daemon.socket_path) as client:
            namespace = client.open_namespace("kv-chats", {"model": "m", "block_tokens": "512"})
            ask_for(client, namespace, some_chats(20))
        assert daemon.stop() == 0
        assert sorted(tmp_path.iterdir()) == before
