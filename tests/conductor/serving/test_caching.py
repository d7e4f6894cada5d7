"""Context caching by its public API, against a Conductor process with real workers and daemons.

The slow ones end and start Conductors, daemons and workers; the pure part is `test_caching_rules.py`.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")
openai = pytest.importorskip("openai", reason="openai is not installed: pip install openai")

from command_line import CommandLine
from directory_server import DirectoryServer
from serving_world import World, eventually, serving_world

pytestmark = pytest.mark.slow

DOCUMENT = "All the world is a stage, and all the men and women merely players. " * 6
CACHED = [{"role": "system", "content": DOCUMENT}]
QUESTION = {"role": "user", "content": "Who are the players?"}
ALICE, BOB = "key-of-alice-0123456789", "key-of-bob-0123456789"
KEYS = f"""
[tenancy]
salt_secret = "only-the-operator-knows-this"
[keys.alice]
tenant = "alice"
key = "{ALICE}"
[keys.bob]
tenant = "bob"
key = "{BOB}"
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serving_world(tmp_path_factory.mktemp("caching"), caching="tenant_tokens = 2000", more=KEYS) as world:
        world.key = ALICE
        yield world


@pytest.fixture
def cache(world: World) -> Iterator[dict[str, Any]]:
    made = world.create(CACHED, name="play", metadata={"kind": "play"}, tags=["stage.v-1"])
    yield world.until(made["id"], "ready")
    world.ask("DELETE", f"/v1/caching/{made['id']}")


def ready_row(world: World, id: str) -> dict[str, Any] | None:
    """Of the dashboard, which shows caches as they were a moment ago."""
    rows = world.ask("GET", "/-/v1/overview").json()["caches"]
    return next((row for row in rows if row["id"] == id and row["status"] == "ready"), None)


def named(content: str) -> list[dict[str, Any]]:
    return [{"role": "cache", "content": content}, QUESTION]


def test_a_cache_is_created_becomes_ready_is_used_and_deleted(world: World) -> None:
    made = world.create(CACHED, ttl=600)
    assert made["status"] in ("pending", "ready") and made["object"] == "context-cache"
    assert made["id"].startswith("cache-") and 590 < made["expired_at"] - time.time() <= 600
    ready = world.until(made["id"], "ready")
    assert ready["tokens"] > 400 and ready["tokens"] % 16 == 0 and ready["messages"] == CACHED

    answer = world.chat([*CACHED, QUESTION], **{"X-Msh-Context-Cache": made["id"]})
    assert answer.headers["Msh-Context-Cache-Id"] == made["id"]
    assert int(answer.headers["Msh-Context-Cache-Token-Saved"]) == ready["tokens"]
    assert int(answer.headers["Msh-Context-Cache-Token-Exp"]) == ready["expired_at"]
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= ready["tokens"]

    gone = world.ask("DELETE", f"/v1/caching/{made['id']}").json()
    assert gone == {"deleted": True, "id": made["id"], "object": "context_cache_object.deleted"}
    assert world.ask("GET", f"/v1/caching/{made['id']}").status_code == 404
    assert world.pins() == 0


def test_a_message_of_role_cache_stands_for_the_cached_ones(world: World, cache: dict[str, Any]) -> None:
    whole = world.chat([*CACHED, QUESTION]).json()
    for content in (f"cache_id={cache['id']}", "tag=stage.v-1;reset_ttl=1200"):
        answer = world.chat(named(content))
        assert answer.json()["choices"] == whole["choices"]
        assert answer.json()["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
        assert int(answer.headers["Msh-Context-Cache-Token-Saved"]) == cache["tokens"]
    assert 1190 < int(answer.headers["Msh-Context-Cache-Token-Exp"]) - time.time() <= 1200
    assert world.get(cache["id"])["expired_at"] == int(answer.headers["Msh-Context-Cache-Token-Exp"])


def test_the_openai_client_streams_by_a_cache(world: World, cache: dict[str, Any]) -> None:
    with openai.OpenAI(base_url=f"{world.url}/v1", api_key=ALICE, max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="tiny",
            messages=[*CACHED, QUESTION],
            stream=True,
            max_tokens=3,
            extra_headers={"X-Msh-Context-Cache": cache["id"], "X-Msh-Context-Cache-Reset-TTL": "900"},
        )
        assert int(raw.headers["Msh-Context-Cache-Token-Saved"]) == cache["tokens"]
        assert len(list(raw.parse())) >= 2


def test_a_dry_run_says_what_would_be_saved_and_makes_no_answer(world: World, cache: dict[str, Any]) -> None:
    before = world.bill("alice")
    answer = world.chat(named(f"cache_id={cache['id']};dry_run=1;reset_ttl=60"))
    assert answer.json()["choices"] == []
    assert int(answer.headers["Msh-Context-Cache-Token-Saved"]) == cache["tokens"]
    assert int(answer.headers["Msh-Context-Cache-Token-Exp"]) == cache["expired_at"]
    assert world.bill("alice")["calls"] == before["calls"]


def test_caches_are_listed_filtered_and_changed(world: World, cache: dict[str, Any]) -> None:
    other = world.create([{"role": "system", "content": "Another text entirely. " * 3}], metadata={"kind": "text"})
    listed = world.ask("GET", "/v1/caching").json()
    assert [one["id"] for one in listed["data"]] == [other["id"], cache["id"]] and listed["object"] == "list"
    assert [one["id"] for one in world.ask("GET", "/v1/caching?metadata[kind]=play").json()["data"]] == [cache["id"]]
    page = world.ask("GET", f"/v1/caching?limit=1&order=asc&after={cache['id']}").json()
    assert [one["id"] for one in page["data"]] == [other["id"]] and not page["has_more"]
    changed = world.ask("PUT", f"/v1/caching/{cache['id']}", {"metadata": {"act": "2"}, "ttl": 100}).json()
    assert changed["metadata"] == {"act": "2"} and changed["status"] == "pending"
    assert world.until(cache["id"], "ready")["expired_at"] - time.time() <= 100
    world.ask("DELETE", f"/v1/caching/{other['id']}")


def test_tags_are_bound_found_and_deleted(world: World, cache: dict[str, Any]) -> None:
    tags = "/v1/caching/refs/tags"
    bound = world.ask("POST", tags, {"tag": "now", "cache_id": cache["id"]}).json()
    assert (bound["tag"], bound["cache_id"], bound["object"]) == ("now", cache["id"], "cache_object.tag")
    assert [one["tag"] for one in world.ask("GET", tags).json()["data"]] == ["now", "stage.v-1"]
    assert world.ask("GET", tags + "/now").json() == bound
    assert world.ask("GET", tags + "/now/content").json()["id"] == cache["id"]
    for _ in range(2):
        assert world.ask("DELETE", tags + "/now").json()["deleted"]
    assert world.ask("GET", tags + "/now").status_code == 404
    world.ask("DELETE", f"/v1/caching/{cache['id']}")
    assert world.ask("GET", tags).json()["data"] == []


def test_another_tenant_s_cache_is_not_there(world: World, cache: dict[str, Any]) -> None:
    path = f"/v1/caching/{cache['id']}"
    for method, body in (("GET", None), ("PUT", {"ttl": 5}), ("DELETE", None)):
        assert world.ask(method, path, body, BOB).status_code == 404
    refused = world.chat([*CACHED, QUESTION], BOB, **{"X-Msh-Context-Cache": cache["id"]})
    assert refused.status_code == 404 and refused.json()["error"]["code"] == "cache_not_found"
    assert world.chat(named("tag=stage.v-1"), BOB).status_code == 404
    assert world.ask("GET", "/v1/caching", key=BOB).json()["data"] == []
    assert world.ask("GET", "/v1/caching", key="nobody-s-key").status_code == 401


def test_two_creates_of_the_same_content_at_once_are_built_and_paid_once(world: World) -> None:
    before = world.bill("bob")["creation_tokens"]
    with ThreadPoolExecutor(2) as threads:
        made = list(threads.map(lambda _: world.create(CACHED, BOB), range(2)))
    ready = [world.until(one["id"], "ready", BOB) for one in made]
    assert ready[0]["id"] != ready[1]["id"]
    assert world.bill("bob")["creation_tokens"] - before == ready[0]["tokens"]
    for one in made:
        pinned = world.pins()
        world.ask("DELETE", f"/v1/caching/{one['id']}", key=BOB)
    assert pinned > 0 == world.pins()  # each held them for itself


def test_a_tenant_has_so_many_cached_tokens_and_no_more(world: World) -> None:
    made = [world.create([{"role": "system", "content": f"{n} " + DOCUMENT}]) for n in range(4)]
    refused = world.ask("POST", "/v1/caching", {"model": "tiny", "messages": CACHED})
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "insufficient_quota"
    assert "2000 cached tokens" in refused.json()["error"]["message"]
    for one in made:
        world.ask("DELETE", f"/v1/caching/{one['id']}")
    world.ask("DELETE", f"/v1/caching/{world.create(CACHED)['id']}")


def test_a_cache_whose_time_is_over_is_let_go_and_can_be_revived(world: World) -> None:
    made = world.create(CACHED, ttl=2)
    world.until(made["id"], "ready")
    world.until(made["id"], "inactive")
    eventually(lambda: world.pins() == 0)
    over = world.chat(named(f"cache_id={made['id']}"))
    assert over.status_code == 404 and "reset_ttl" in over.json()["error"]["message"]
    revived = world.chat(named(f"cache_id={made['id']};reset_ttl=600"))
    assert revived.status_code == 200 and revived.headers["Msh-Context-Cache-Token-Saved"] == "0"
    world.until(made["id"], "ready")
    assert world.pins() > 0
    world.ask("DELETE", f"/v1/caching/{made['id']}")


def test_the_bill_shows_what_a_cache_costs_and_saves(world: World, cache: dict[str, Any]) -> None:
    before = world.bill("alice")
    world.chat([*CACHED, QUESTION], **{"X-Msh-Context-Cache": cache["id"]})
    after = world.bill("alice")
    assert after["calls"] == before["calls"] + 1 and after["cache_calls"] == before["cache_calls"] + 1
    assert after["saved_tokens"] - before["saved_tokens"] == cache["tokens"]
    assert after["costs"]["calls"] == pytest.approx(before["costs"].get("calls", 0.0) + 0.01)
    assert after["storage_token_minutes"] >= cache["tokens"]  # the first minute has begun
    printed = CommandLine("").run("bill", "--tenant", "alice", "--conductor", world.url)
    assert "without caching" in printed and f"{after['calls']} call" in printed
    row = eventually(lambda: ready_row(world, cache["id"]))
    assert row["cost"] == pytest.approx(cache["tokens"] * 25 / 1e6)
    assert after["total"] == pytest.approx(sum(after["costs"].values()), abs=1e-5)


@pytest.mark.parametrize(
    ("messages", "headers", "param", "text"),
    [
        ([{"role": "system", "content": DOCUMENT + "!"}, QUESTION], {}, "messages[0].content", "exactly as they were"),
        ([{"role": "user", "content": DOCUMENT}, QUESTION], {}, "messages[0].role", "exactly as they were"),
        ([QUESTION, {"role": "cache", "content": "cache_id=x"}], None, "messages[1].role", "first message"),
        (named("cache_id=x;"), None, "messages[0].content", "without"),
        (named("reset_ttl=10"), None, "messages[0].content", "cache_id or tag"),
        (named("cache_id=x;reset_ttl=9999"), None, "messages[0].content", "3600"),
        (named("cache_id=x"), {}, "X-Msh-Context-Cache", "leave one"),
        ([*CACHED, QUESTION], {"X-Msh-Context-Cache-DryRun": "yes"}, "X-Msh-Context-Cache-DryRun", "0 or 1"),
    ],
)
def test_what_does_not_match_a_cache_is_told_with_its_place(
    world: World, cache: dict[str, Any], messages: Any, headers: dict[str, str] | None, param: str, text: str
) -> None:
    if headers is not None:
        headers = {"X-Msh-Context-Cache": cache["id"], **headers}
    answer = world.chat(messages, **(headers or {}))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param and text in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({"ttl": 3601}, 400, "ttl"),
        ({"ttl": 60, "expired_at": time.time() + 60}, 400, "not both"),
        ({"expired_at": 5}, 400, "expired_at"),
        ({"name": "x" * 257}, 400, "name"),
        ({"metadata": {"k" * 65: "v"}}, 400, "metadata"),
        ({"metadata": {str(n): "v" for n in range(17)}}, 400, "16"),
        ({"tags": ["1st"]}, 400, "letter first"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "cache", "content": "cache_id=x"}]}, 400, "another one"),
        ({"messages": [{"role": "system", "content": "hi"}]}, 400, "nothing to cache"),
        ({"model": "gpt-9"}, 404, "gpt-9"),
        ({"messages": [{"role": "system", "content": "x" * 3000}]}, 400, "2048 positions"),
    ],
)
def test_a_cache_that_can_t_be_is_refused(world: World, change: dict[str, Any], status: int, text: str) -> None:
    answer = world.ask("POST", "/v1/caching", {"model": "tiny", "messages": CACHED, **change})
    assert answer.status_code == status, answer.text
    assert text in answer.json()["error"]["message"]


# --- ends and restarts ---


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_caches_outlive_the_conductor_and_are_built_anew_when_a_daemon_has_lost_them(tmp_path: Path) -> None:
    with serving_world(tmp_path, daemon={"nvme.path": ""}) as world:
        made = world.until(world.create(CACHED)["id"], "ready")
        paid = world.bill()["creation_tokens"]
        world.daemons[0].kill()  # all of it was in memory
        world.daemons[0].run()
        eventually(lambda: world.pins() > 0, 60)
        world.until(made["id"], "ready", seconds=60)
        assert world.bill()["creation_tokens"] == paid == made["tokens"]
        answer = world.chat([*CACHED, QUESTION], **{"X-Msh-Context-Cache": made["id"]})
        assert int(answer.headers["Msh-Context-Cache-Token-Saved"]) == made["tokens"]

        assert world.bill()["calls"] == 1
        world.conductors[0].kill()
        world.conductors.clear()
        world.start_conductor()
        assert world.get(made["id"])["status"] == "ready"
        assert world.bill()["creation_tokens"] == paid and world.bill()["calls"] == 1


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_lost_node_s_caches_are_built_on_another_one(tmp_path: Path) -> None:
    with serving_world(tmp_path, nodes=2) as world:
        made = world.until(world.create(CACHED)["id"], "ready")
        lost = next(node for node in (0, 1) if world.pins(node))
        world.workers[lost].close()
        world.daemons[lost].kill()
        world.until(made["id"], "ready", seconds=90)
        eventually(lambda: world.pins(1 - lost) > 0, 90)
        assert world.until(made["id"], "ready")["tokens"] == world.bill()["creation_tokens"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_beyond_the_share_of_pins_a_cache_is_in_error(tmp_path: Path) -> None:
    with serving_world(tmp_path, caching="pin_share = 0.00001") as world:
        found = world.until(world.create(CACHED)["id"], "error")
        assert found["error"]["type"] == "insufficient_quota" and "pinned" in found["error"]["message"]
        assert world.bill()["creation_tokens"] == 0 == world.pins()
        answer = world.chat([*CACHED, QUESTION], **{"X-Msh-Context-Cache": found["id"]})
        assert answer.status_code == 200 and answer.headers["Msh-Context-Cache-Token-Saved"] == "0"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_conductors_on_one_server_s_state_build_once_and_one_may_be_killed(tmp_path: Path) -> None:
    pytest.importorskip("valkey", reason="valkey is not installed: pip install mooncask[cluster]")
    with (
        DirectoryServer(tmp_path, "--appendonly", "yes") as server,
        serving_world(tmp_path, more=f'[state]\nurl = "{server.url}/1"') as world,
    ):
        second = world.start_conductor("c1")
        for role in ("prefill", "decode"):
            world.start_worker(role, 0, second)
        world.ready(second)
        made = [world.create([{"role": "system", "content": f"{n} " + DOCUMENT}]) for n in range(3)]
        tokens = sum(one["tokens"] for one in made)
        world.first = 1
        for one in made:
            world.until(one["id"], "ready")
        assert world.bill()["creation_tokens"] == tokens
        world.conductors[0].kill()
        answer = world.chat(named(f"cache_id={made[0]['id']}"))
        assert int(answer.headers["Msh-Context-Cache-Token-Saved"]) == made[0]["tokens"]
        last = world.create(CACHED)
        world.until(last["id"], "ready", seconds=90)
        assert world.bill()["creation_tokens"] == tokens + last["tokens"]
