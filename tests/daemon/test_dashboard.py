"""The dashboard in a real browser, headless Chromium, against a real daemon. What the pages say is tested elsewhere."""

import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from daemon_process import DaemonProcess

from mooncask.client.hashing import chain
from mooncask.client.local import LocalClient

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
FAMILY = {"model": "dashboard-test", "dtype": "float32", "block_tokens": "16"}
PROMPT = list(range(1000, 1000 + 16 * 6))
BLOCK = 64 << 10
WIDE, PHONE = {"width": 1400, "height": 900}, {"width": 390, "height": 844}

needs_chromium = pytest.mark.skipif(not CHROMIUM, reason='no Chromium: as root "make test-deps" installs it')


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess.start(tmp_path_factory.mktemp("dashboard")) as started:
        with LocalClient.connect(started.socket_path) as client:
            _fill(client)
        yield started


def _fill(client: LocalClient) -> None:
    """Two prompts that share four blocks, one of which is asked for twice, and an object named like a script."""
    namespace = client.open_namespace(family=FAMILY)
    rng = np.random.default_rng(1)
    for prompt in (PROMPT, [*PROMPT[:64], *range(32)]):
        keys = chain(namespace.root(), prompt, 16)
        payloads, depths = [rng.bytes(BLOCK) for _ in keys], list(range(len(keys)))
        client.put(namespace, keys, payloads, parents=[b"", *keys[:-1]], depths=depths, tokens=[16] * len(keys))
    keys = chain(namespace.root(), [*PROMPT, *range(16)], 16)
    for _ in range(2):
        found = client.match(namespace, keys)
        client.acquire(namespace, keys[: len(found)]).close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all tests. Imported here: without Chromium nothing of playwright is wanted."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any, daemon: DaemonProcess) -> Iterator[Any]:
    """The dashboard, filled. Nothing may go wrong in it, and it may ask nobody but the daemon."""
    yield from _opened(browser, daemon, WIDE, "light")


def _opened(browser: Any, daemon: DaemonProcess, viewport: dict[str, int], scheme: str) -> Iterator[Any]:
    context = browser.new_context(viewport=viewport, color_scheme=scheme)
    found = context.new_page()
    faults: list[str] = []
    asked: list[str] = []
    found.on("pageerror", lambda error: faults.append(str(error)))
    found.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    found.on("request", lambda request: asked.append(request.url))
    found.goto(f"http://{daemon.http_address}/-/ui/")
    found.wait_for_selector("#tiers .tier")
    found.wait_for_selector("#tree .node")
    yield found
    context.close()
    assert faults == []
    assert [url for url in asked if not url.startswith(f"http://{daemon.http_address}/-/")] == []


@needs_chromium
def test_it_shows_tiers_namespaces_and_what_was_asked(page: Any) -> None:
    page.wait_for_selector("#numbers b:has-text('%')")
    assert "DRAM" in page.inner_text("#tiers")
    assert "NVME" in page.inner_text("#tiers")
    assert "write_through" in page.inner_text("#namespaces")
    assert "6 of 7" in page.inner_text("#misses")


@needs_chromium
def test_the_prefix_tree_opens_where_two_prompts_part(page: Any) -> None:
    for opened in range(1, 5):
        page.locator("#tree .twist[aria-expanded=false]:not([disabled])").first.click()
        page.locator("#tree .node").nth(opened).wait_for()
    page.locator("#tree .below:not(.run) > .node").nth(1).wait_for()
    assert page.locator("#tree .node").count() == 6


@needs_chromium
def test_a_hot_chain_is_shown_in_the_tree_when_it_is_chosen(page: Any) -> None:
    page.wait_for_selector("#hot button")
    page.locator("#hot button").first.click()
    page.wait_for_selector("#tree .node.chosen")
    assert "block 5" in page.inner_text("#tree .node.chosen")


@needs_chromium
def test_why_names_the_first_block_that_missed(page: Any) -> None:
    page.fill("#why-prompt", ", ".join(map(str, [*PROMPT, *range(7, 7 + 20)])))
    page.click("#why-form button")
    page.wait_for_selector("#why .verdict")
    said = page.inner_text("#why")
    assert "6 of 7 blocks hit (96 tokens); block 6 missed" in said
    assert "4 tokens behind the last whole block" in said


@needs_chromium
def test_a_prompt_that_is_neither_tokens_nor_keys_is_refused_in_words(page: Any) -> None:
    page.fill("#why-prompt", "what is this")
    page.click("#why-form button")
    page.wait_for_selector("#why .bad")
    assert "token ids" in page.inner_text("#why")


@needs_chromium
def test_it_updates_by_itself(page: Any, daemon: DaemonProcess) -> None:
    with LocalClient.connect(daemon.socket_path) as client:
        client.open_namespace(family={**FAMILY, "model": "came-later"}, name="came-later")
    page.wait_for_selector("#namespaces td:has-text('came-later')", timeout=10_000)


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_follows_the_colour_scheme(browser: Any, daemon: DaemonProcess, scheme: str) -> None:
    for page in _opened(browser, daemon, PHONE, scheme):
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(back.partition("(")[2].partition(",")[0]) < 128) is (scheme == "dark")


@needs_chromium
def test_it_says_when_the_daemon_is_gone_and_goes_on_when_it_is_back(
    browser: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with DaemonProcess.start(tmp_path, {"http.listen": "127.0.0.1:0"}) as daemon:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://{daemon.http_address}/-/ui/")
        page.wait_for_selector("#tiers .tier")
        page.route("**/-/v1/**", lambda route: route.abort())
        page.wait_for_selector("#state.lost")
        assert "does not answer" in page.inner_text("#state")
        page.unroute("**/-/v1/**")
        page.wait_for_selector("#state:not(.lost)")
        context.close()


def test_unknown_files_are_not_found_and_known_ones_come_with_a_policy(daemon: DaemonProcess) -> None:
    with urllib.request.urlopen(f"http://{daemon.http_address}/-/ui/") as answer:
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'")
        assert answer.headers.get_content_type() == "text/html"
    for name in ("nothing.js", "__init__.py", "..%2fdashboard.py", "%2e%2e/%2e%2e/main.py"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://{daemon.http_address}/-/ui/{name}")
        assert refused.value.code == 404
        refused.value.close()
