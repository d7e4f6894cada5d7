"""Context caching by its public API, against a Conductor process with real workers and daemons."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

from serving_world import World, serving_world

DOCUMENT = "All the world is a stage, and all the men and women merely players. " * 6
CACHED = [{"role": "system", "content": DOCUMENT}]
QUESTION = {"role": "user", "content": "Who are the players?"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serving_world(tmp_path_factory.mktemp("caching"), caching="tenant_tokens = 1000") as world:
        yield world


@pytest.fixture
def cache(world: World) -> Iterator[dict[str, Any]]:
    made = world.create(CACHED, name="play", metadata={"kind": "play"})
    yield world.until(made["id"], "ready")
    world.ask("DELETE", f"/v1/caching/{made['id']}")


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
