"""One Conductor with real workers and a real daemon, as its tenants and its operator see it: tenants never share KV but that
of what is public; the pages, `mooncask why --request` and the dashboard tell what was done and why."""

import contextlib
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import requests
from command_line import CommandLine
from conductor_process import ConductorProcess
from daemon_process import DaemonProcess
from prometheus_client.parser import text_string_to_metric_families
from tiny_model import write_tiny_llama
from tiny_tokenizer import write_tiny_tokenizer
from worker_server import SECRET, WorkerServerProcess

from mooncask.client.socket_path import http_socket_path
from mooncask.conductor.serving.pages.metric_texts import PREFIX

pytestmark = pytest.mark.slow

OPTIONS = {"load": "always", "block_tokens": "16", "prefill_chunk": "64", "slots": "4", "slot_tokens": "2048"}
BUTLER = "You are a butler of few words, and of much patience. " * 6
READY_SECONDS = 60.0
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
WIDE, PHONE = {"width": 1400, "height": 900}, {"width": 390, "height": 844}

needs_chromium = pytest.mark.skipif(not CHROMIUM, reason='no Chromium: as root "make test-deps" installs it')


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConductorProcess]:
    folder = tmp_path_factory.mktemp("tenants")
    model = write_tiny_llama(folder / "tiny")
    write_tiny_tokenizer(model)
    (folder / "butler.txt").write_text(BUTLER)
    settings = f"""
[server]
worker_secret = "{SECRET}"
[policy]
admission = "none"
[limits]
prefix_seconds = 1.0
[models.tiny]
tokenizer = "{model}"
[keys.ann]
key = "sk-ann"
tenant = "ann"
[keys.bob]
key = "sk-bob"
tenant = "bob"
[keys.meg]
key = "sk-meg"
tenant = "meg"
[tenants.meg]
tokens_per_minute = 400
[tenancy]
salt_secret = "known-to-nobody-else"
[public.butler]
model = "tiny"
file = "{folder / "butler.txt"}"
"""
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(DaemonProcess.start(folder))
        conductor = stack.enter_context(ConductorProcess.start(folder, settings))
        pages = f"unix:{http_socket_path(daemon.socket_path)}"
        more = {"conductor": conductor.workers_url, "node": "n1", "node_pages": pages, **OPTIONS}
        for role in ("prefill", "decode"):
            start = WorkerServerProcess.start(folder, f"{role}-1", role, model, daemon.socket_path, **more)
            stack.enter_context(start)
        deadline = time.monotonic() + READY_SECONDS
        while requests.get(conductor.url + "/readyz", timeout=5).status_code != 200:
            assert time.monotonic() < deadline, conductor.log.read_text()
            time.sleep(0.05)
        yield conductor


def ask(conductor: ConductorProcess, key: str, system: str, question: str, **more: Any) -> requests.Response:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 8, "temperature": 0, **more}
    headers = {"Authorization": f"Bearer {key}"}
    return requests.post(f"{conductor.url}/v1/chat/completions", json=body, headers=headers, timeout=60)


def cached(answer: requests.Response) -> int:
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_tenant_finds_its_own_prompt_again_and_nobody_else_s(served: ConductorProcess) -> None:
    private = "The launch code is one two three four. " * 8
    assert cached(ask(served, "sk-ann", private, "Well?")) == 0
    assert cached(ask(served, "sk-ann", private, "Well?")) > 300
    assert cached(ask(served, "sk-bob", private, "Well?")) == 0
    assert cached(ask(served, "sk-bob", private, "Well?")) > 300


def test_a_public_system_prompt_is_shared_and_the_question_behind_it_is_not(served: ConductorProcess) -> None:
    question = "Tell me where the silver spoons of the house are kept at night, please. " * 2
    first = ask(served, "sk-ann", BUTLER, question)
    again = cached(ask(served, "sk-ann", BUTLER, question))
    other = ask(served, "sk-bob", BUTLER, question)
    public = len(BUTLER) // 16 * 16
    assert public <= cached(other) <= public + 32 < again
    assert other.json()["choices"][0]["message"]["content"] == first.json()["choices"][0]["message"]["content"]
    assert cached(ask(served, "sk-bob", BUTLER, question)) == again


def test_a_quota_is_told_with_the_time_to_wait(served: ConductorProcess) -> None:
    assert ask(served, "sk-meg", "Hush", "x" * 300).status_code == 200
    refused = ask(served, "sk-meg", "Hush", "x" * 300)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "insufficient_quota"
    assert 1 <= int(refused.headers["Retry-After"]) <= 62
    larger = ask(served, "sk-meg", "Hush", "x" * 500)
    assert larger.status_code == 429
    assert "Retry-After" not in larger.headers


def test_who_has_no_key_is_told_how_to_send_one(served: ConductorProcess) -> None:
    refused = ask(served, "sk-nobody", "Hush", "Well?")
    assert refused.status_code == 401
    assert refused.json()["error"]["type"] == "authentication_error"
    assert requests.get(f"{served.url}/v1/models", timeout=10).status_code == 401
    for key in ("sk-ann", "sk-bob", "sk-nobody"):
        assert key not in served.log.read_text()


# --- pages ---


def page(served: ConductorProcess, path: str, **headers: str) -> Any:
    answer = requests.get(f"{served.url}/-/{path}", headers=headers, timeout=10)
    assert answer.status_code == 200, answer.text
    return answer.json()


def samples(served: ConductorProcess) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = requests.get(f"{served.url}/-/metrics", timeout=10).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(served: ConductorProcess, name: str, **labels: str) -> float:
    found = samples(served).items()
    return sum(value for (known, has), value in found if known == PREFIX + name and labels.items() <= dict(has).items())


def test_metrics_count_requests_tokens_and_what_was_refused(served: ConductorProcess) -> None:
    before = {name: total(served, name) for name in ("requests_total", "prompt_tokens_total", "ttft_seconds_count")}
    question = "How many tokens is this question long, and how many of them are cached? " * 3
    answers = [ask(served, "sk-ann", "Count", question).json()["usage"] for _ in range(2)]
    assert total(served, "requests_total") == before["requests_total"] + 2
    assert total(served, "ttft_seconds_count") == before["ttft_seconds_count"] + 2
    prompts = sum(answer["prompt_tokens"] for answer in answers)
    assert total(served, "prompt_tokens_total") == before["prompt_tokens_total"] + prompts
    assert total(served, "cached_tokens_total") >= answers[1]["prompt_tokens_details"]["cached_tokens"] > 0
    assert total(served, "workers", role="decode") == 1
    assert total(served, "decode_slots") == 4
    assert total(served, "step_seconds_count") > 0
    assert ask(served, "sk-meg", "Hush", "x" * 500).status_code == 429
    assert total(served, "quota_refusals_total", tenant="meg") >= 1
    assert total(served, "quota_limit_tokens", tenant="meg") == 400


def test_pools_requests_and_calibration_tell_what_is_there(served: ConductorProcess) -> None:
    answer = ask(served, "sk-ann", "Pools", "Who is there? " * 30).json()
    (pool,) = page(served, "v1/pools")["pools"]
    assert [worker["role"] for worker in pool["workers"]] == ["decode", "prefill"]
    assert pool["block_tokens"] == 16
    newest = page(served, "v1/requests?limit=1")["requests"]
    assert [one["id"] for one in newest] == [answer["id"]]
    one = page(served, f"v1/requests/{answer['id']}")
    assert one["request"]["ended"] in ("stop", "length")
    assert one["request"]["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert one["placement"] == "kvcache-centric"
    calibration = page(served, "v1/calibration")
    assert all(predicted >= 0 and happened > 0 for predicted, happened in calibration["ttft"]["pairs"])
    assert calibration["step"]["pairs"]
    overview = page(served, "v1/overview")
    assert overview["pools"][0]["model"] == "tiny"
    assert overview["outcomes"]["length"] >= 1


def test_what_is_not_there_is_said(served: ConductorProcess) -> None:
    assert requests.get(f"{served.url}/-/v1/requests/nobody", timeout=10).status_code == 404
    assert requests.get(f"{served.url}/-/v1/requests?limit=0", timeout=10).status_code == 400
    unknown = requests.post(f"{served.url}/-/v1/workers/nobody/role", json={"role": "decode"}, timeout=10)
    assert unknown.status_code == 404
    assert "there is decode-1, prefill-1" in unknown.json()["error"]["message"]
    wrong = requests.post(f"{served.url}/-/v1/workers/decode-1/role", json={"role": "king"}, timeout=10)
    assert wrong.status_code == 400
    assert "role" in wrong.json()["error"]["message"]


def test_pages_are_for_this_machine_and_for_no_other_site(served: ConductorProcess) -> None:
    for headers in ({"X-Forwarded-For": "10.0.0.1"}, {"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        refused = requests.get(f"{served.url}/-/v1/overview", headers=headers, timeout=10)
        assert refused.status_code == 401, headers


def test_why_tells_a_request_s_way_in_words(served: ConductorProcess) -> None:
    answer = ask(served, "sk-bob", "Why", "Where does this go, and why does it go there? " * 8).json()
    command = CommandLine("/nowhere")
    told = command.run("why", "--request", answer["id"], "--conductor", served.url)
    assert "tenant bob" in told
    assert re.search(r"-> prefill-1 on n1: queue 0\.\d+ s", told)
    assert "prefill on prefill-1: there was no other; decode on decode-1" in told
    assert re.search(r"first token after \d+\.\d+ s \(predicted", told)
    assert command.json("why", "--request", answer["id"], "--conductor", served.url)["request"]["id"] == answer["id"]
    assert "no request nobody is remembered" in command.error(
        "why", "--request", "nobody", "--conductor", served.url, expect=3
    )
    assert "no Conductor at" in command.error("why", "--request", "x", "--conductor", "http://127.0.0.1:9", expect=69)
    assert "namespace" in command.error("why", expect=64)


def roles(served: ConductorProcess) -> dict[str, str]:
    (pool,) = page(served, "v1/pools")["pools"]
    return {worker["name"]: worker["role"] for worker in pool["workers"]}


def change_role(served: ConductorProcess, worker: str, role: str) -> None:
    """Asked for, and seen in the worker's own reports."""
    answer = requests.post(f"{served.url}/-/v1/workers/{worker}/role", json={"role": role}, timeout=10)
    assert answer.json() == {"worker": worker, "wanted_role": role}
    deadline = time.monotonic() + READY_SECONDS
    while roles(served)[worker] != role:
        assert time.monotonic() < deadline, served.log.read_text()
        time.sleep(0.02)


def test_a_worker_changes_its_role_while_it_serves(served: ConductorProcess) -> None:
    question = "Which of you answers me when the roles are changed? " * 6
    before = ask(served, "sk-ann", "Roles", question).json()
    change_role(served, "prefill-1", "decode")
    nobody = ask(served, "sk-ann", "Roles", "Another question, which nobody has computed yet. " * 6)
    assert nobody.status_code == 503
    assert "no prefill worker" in nobody.json()["error"]["message"]
    (failed,) = page(served, "v1/requests?limit=1")["requests"]
    assert failed["ended"] == "failed" and "no prefill worker" in failed["failures"][0]
    change_role(served, "decode-1", "prefill")
    after = ask(served, "sk-ann", "Roles", question).json()
    assert after["choices"][0]["message"] == before["choices"][0]["message"]
    assert page(served, f"v1/requests/{after['id']}")["request"]["decode_worker"] == "prefill-1"
    change_role(served, "decode-1", "decode")
    change_role(served, "prefill-1", "prefill")
    assert page(served, "v1/plan")["loads"]["tiny"] is not None


# --- dashboard ---


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Imported here: without Chromium nothing of playwright is wanted."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@contextlib.contextmanager
def opened(browser: Any, served: ConductorProcess, viewport: dict[str, int], scheme: str) -> Iterator[Any]:
    """The dashboard, filled. Nothing may go wrong in it, and it may ask nobody but the Conductor."""
    context = browser.new_context(viewport=viewport, color_scheme=scheme)
    found = context.new_page()
    faults, asked = list[str](), list[str]()
    found.on("pageerror", lambda error: faults.append(str(error)))
    found.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    found.on("request", lambda request: asked.append(request.url))
    found.goto(f"{served.url}/-/")
    found.wait_for_selector("#pools .pool")
    yield found
    context.close()
    assert faults == []
    assert [url for url in asked if not url.startswith(f"{served.url}/-/")] == []


@needs_chromium
def test_the_dashboard_shows_pools_requests_and_the_way_of_one(browser: Any, served: ConductorProcess) -> None:
    ask(served, "sk-ann", "Show", "What is to be seen on the dashboard? " * 5)
    with opened(browser, served, WIDE, "light") as page:
        assert "prefill-1" in page.inner_text("#pools")
        assert "answers" in page.inner_text("#pools")
        page.wait_for_selector("#calibration circle")
        assert "400" in page.inner_text("#quotas")
        page.locator("#requests button").first.click()
        page.wait_for_selector("#way h3")
        assert "Prefill workers that were looked at, policy kvcache-centric" in page.inner_text("#way")
        page.locator("#pause").click()
        page.wait_for_selector("#state:has-text('paused')")
        (served.log.parent / "wide.png").write_bytes(page.screenshot(full_page=True))


@needs_chromium
def test_the_dashboard_shows_rejections_hot_prefixes_caches_and_the_plan(
    browser: Any, served: ConductorProcess
) -> None:
    """All that this small world has none of: the Conductor's own answer, with such things put into it."""
    told = page(served, "v1/overview")
    rejected = {
        **told["requests"][0],
        "id": "r-1",
        "rejected": "predicted TTFT over its SLO",
        "retry_after_seconds": 7.0,
    }
    told["requests"].insert(0, rejected)
    told["rejections"] = {"tbt_after_prefill": 41}
    told["hot"] = [{"key": "ab" * 16, "model": "tiny", "tokens": 512, "reads_per_second": 3.5, "nodes": ["n1", "n2"]}]
    cache = {"id": "cache-1", "tenant": "<b>ann</b>", "model": "tiny", "status": "ready", "tokens": 4096}
    told["caches"] = [{**cache, "expires_at": time.time() + 600, "cost": 0.125}]
    change = {"worker": "prefill-9", "role": "decode"}
    plan = {"model": "tiny", "at": 0.0, "prefill": 1, "decode": 3, "prefill_now": 2, "decode_now": 2, "wanted": 5}
    told["plan"]["recommendations"] = [{**plan, "prefill_load": 0.4, "decode_load": 2.5, "changes": [change]}]
    with opened(browser, served, WIDE, "dark") as page_:
        page_.route("**/v1/overview", lambda route: route.fulfill(json=told))
        page_.wait_for_selector("#rejections button")
        shown = {name: page_.inner_text(f"#{name}") for name in ("reasons", "rejections", "hot", "caches", "plan")}
        (served.log.parent / "filled.png").write_bytes(page_.screenshot(full_page=True))
    assert "tbt after prefill\t41" in shown["reasons"]
    assert "predicted TTFT over its SLO" in shown["rejections"]
    assert "3.50/s" in shown["hot"] and "n1, n2" in shown["hot"]
    assert "<b>ann</b>" in shown["caches"] and "10 min" in shown["caches"].replace("9 min", "10 min")
    assert "prefill-9 to decode" in shown["plan"] and "2 → 1" in shown["plan"]


@needs_chromium
def test_the_dashboard_fits_a_phone_and_is_dark_where_that_is_wanted(browser: Any, served: ConductorProcess) -> None:
    with opened(browser, served, PHONE, "dark") as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert colour == "rgb(16, 20, 28)"
        (served.log.parent / "phone.png").write_bytes(page.screenshot(full_page=True))
