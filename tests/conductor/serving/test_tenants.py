"""Keys, classes, token quotas, salts and public prompts: what is decided before any worker is asked."""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizer import write_tiny_tokenizer

from mooncask.conductor.serving.config import Config, KeySection, PublicSection, load_config
from mooncask.conductor.serving.door.gate import CallUsage, Identity
from mooncask.conductor.serving.state.opening import opened_state
from mooncask.conductor.serving.state.sqlite import MEMORY, SqliteState
from mooncask.conductor.serving.state.state import State
from mooncask.conductor.serving.tenants.gate import TenantGate, limits_of, make_gate, tenant_salt
from mooncask.conductor.serving.tenants.keys import KeyRing
from mooncask.conductor.serving.tenants.public_prompts import PublicPrompts, common_tokens, read_public_prompts
from mooncask.conductor.serving.tenants.quotas import LEASE_SECONDS, MINUTE, SLOTS, Window
from mooncask.conductor.serving.tenants.shared_quotas import SharedQuotas
from mooncask.conductor.serving.text.texts import Texts
from mooncask.errors import AccessDenied, BadField, ConfigError, TokenQuotaExceeded

SETTINGS = """
[classes.batch]
priority = 10
[classes.chat]
priority = 100
[classes.gold]
priority = 200
[keys.a]
key = "sk-alpha"
tenant = "acme"
class = "chat"
[keys.b]
key_sha256 = "{digest}"
tenant = "beta"
class = "gold"
priority = 250
[keys.c]
key_file = "{file}"
tenant = "beta"
[tenants.acme]
tokens_per_minute = 1000
[tenancy]
salt_secret = "a-secret-that-nobody-knows"
"""


def told(folder: Path, text: str) -> Config:
    path = folder / "conductor.toml"
    path.write_text(text)
    return load_config(path, {})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "key").write_text("sk-gamma\n")
    digest = hashlib.sha256(b"sk-beta").hexdigest()
    return told(tmp_path, SETTINGS.format(digest=digest, file=tmp_path / "key"))


def gate_of(
    config: Config,
    public: PublicPrompts | None = None,
    now: list[float] | None = None,
    state: State | None = None,
) -> TenantGate:
    quotas = SharedQuotas(limits_of(config.tenants), state or SqliteState(MEMORY))
    gate = make_gate(config, public or PublicPrompts(), lambda model: 4, quotas)
    gate.clock = lambda: (now or [1e9])[0]
    return gate


def asked(gate: TenantGate, key: str, **more: str) -> Identity:
    return gate.identify({"Authorization": f"Bearer {key}", **{k.replace("_", "-"): v for k, v in more.items()}})


def test_a_key_gives_tenant_class_and_priority_in_whichever_way_it_is_told(config: Config) -> None:
    gate = gate_of(config)
    assert asked(gate, "sk-alpha").tenant == "acme"
    assert [asked(gate, key).service_class for key in ("sk-alpha", "sk-beta", "sk-gamma")] == ["chat", "gold", "batch"]
    assert [asked(gate, key).priority for key in ("sk-alpha", "sk-beta", "sk-gamma")] == [100, 250, 10]


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic sk-alpha", "Bearer sk-alph", "Bearer SK-ALPHA", "sk-alpha"]
)
def test_an_unknown_key_is_refused_and_never_told(
    config: Config, header: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(AccessDenied) as refused:
        gate_of(config).identify({"Authorization": header})
    assert "sk-alph" not in str(refused.value).lower() + caplog.text.lower()


def test_a_class_is_asked_for_downwards_only(config: Config) -> None:
    gate = gate_of(config)
    lower = asked(gate, "sk-beta", X_Mooncask_Class="chat")
    assert (lower.service_class, lower.priority) == ("chat", 100)
    with pytest.raises(BadField, match="chat at most; it may ask for batch, chat"):
        asked(gate, "sk-alpha", X_Mooncask_Class="gold")
    with pytest.raises(BadField, match="no class 'silver'; there is batch, chat"):
        asked(gate, "sk-alpha", X_Mooncask_Class="silver")


def test_without_keys_everybody_is_one_tenant_that_may_ask_for_every_class(tmp_path: Path) -> None:
    gate = gate_of(told(tmp_path, "[classes.low]\npriority = 1\n[classes.high]\npriority = 9\n"))
    nobody = gate.identify({})
    assert (nobody.tenant, nobody.service_class, nobody.priority, nobody.cache_salt) == ("default", "low", 1, "")
    assert gate.identify({"X-Mooncask-Class": "high"}).priority == 9
    with pytest.raises(BadField, match="there is low, high"):
        gate.identify({"X-Mooncask-Class": "other"})


def test_salts_are_equal_for_a_tenant_s_keys_and_come_of_the_secret(config: Config) -> None:
    gate = gate_of(config)
    assert asked(gate, "sk-beta").cache_salt == asked(gate, "sk-gamma").cache_salt
    assert asked(gate, "sk-beta").cache_salt != asked(gate, "sk-alpha").cache_salt
    assert asked(gate, "sk-alpha").cache_salt == tenant_salt(b"a-secret-that-nobody-knows", "acme")
    assert tenant_salt(b"another secret", "acme") != tenant_salt(b"a-secret-that-nobody-knows", "acme")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("tenancy", "tenancy_off"), "tenancy_off"),
        (('class = "chat"', 'class = "chap"'), "must be one of batch, chat, gold"),
        (('salt_secret = "a-secret-that-nobody-knows"', 'salt_secret = "short"'), "16 characters"),
        (('key = "sk-alpha"', 'key = "sk-gamma"'), "same key"),
        (('key = "sk-alpha"', 'key = "sk-alpha"\nkey_file = "x"'), "one of key, key_sha256 and key_file"),
        (('key = "sk-alpha"', 'key_sha256 = "abc"'), "64 hex digits"),
        (('key = "sk-alpha"', 'key_file = "/nowhere/at/all"'), "cannot be read"),
        (("tenants.acme", "tenants.acne"), "has no key; there is acme, beta"),
        (('tenant = "acme"', 'tenant = ""'), "tenant"),
    ],
)
def test_a_configuration_that_is_wrong_is_refused_by_its_key(tmp_path: Path, change: tuple[str, str], why: str) -> None:
    (tmp_path / "key").write_text("sk-gamma")
    text = SETTINGS.format(digest=hashlib.sha256(b"sk-beta").hexdigest(), file=tmp_path / "key")
    with pytest.raises(ConfigError, match=why) as refused:
        gate_of(told(tmp_path, text.replace(*change)))
    assert "sk-" not in str(refused.value)


def test_another_address_than_loopback_needs_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"server\.listen"):
        told(tmp_path, '[server]\nlisten = "0.0.0.0:9471"\n')
    assert told(tmp_path, '[server]\nlisten = "0.0.0.0:9471"\n[keys.a]\nkey = "k"\ntenant = "t"\n').keys


# --- quotas ---


def usage(outcome: str, prompt: int, answer: int, answer_max: int, at: float) -> CallUsage:
    return CallUsage("r", "acme", "m", prompt, 0, answer, outcome, at, 1.0, answer_tokens_max=answer_max)


async def test_what_was_not_used_is_given_back_and_nothing_for_what_never_began(config: Config) -> None:
    now = [1e9]
    async with opened_state("memory:", "") as state:
        gate = gate_of(config, now=now, state=state)
        me = asked(gate, "sk-alpha")
        await gate.admit(me, 900)
        refusal = "tenant acme has used its quota of 1000 tokens a minute"
        with pytest.raises(TokenQuotaExceeded, match=refusal) as refused:
            await gate.admit(me, 200)
        assert 59 < refused.value.retry_after_seconds <= 62
        gate.record(me, usage("stop", 100, 50, 800, now[0]))
        await gate.admit(me, 850)
        gate.record(me, usage("rejected", 100, 0, 750, now[0]))
        await gate.admit(me, 850)
        gate.record(me, usage("cancelled", 100, 0, 750, now[0]))
        assert gate.quotas.used(now[0])["acme"] == {"tokens a minute": (250, 1000)}
        now[0] += 62
        await gate.admit(me, 1000)


async def test_more_than_a_whole_quota_is_refused_without_a_time_to_wait(config: Config) -> None:
    async with opened_state("memory:", "") as state:
        gate = gate_of(config, state=state)
        with pytest.raises(TokenQuotaExceeded, match="ask for a larger one") as refused:
            await gate.admit(asked(gate, "sk-alpha"), 1001)
        assert refused.value.retry_after_seconds == 0


@given(st.lists(st.tuples(st.floats(0, 40), st.integers(1, 60), st.booleans()), max_size=60))
def test_no_minute_ever_holds_more_than_the_limit_and_a_wait_is_long_enough(
    steps: list[tuple[float, int, bool]],
) -> None:
    window, now, booked = Window(MINUTE, 100), 1000.0, list[tuple[float, int]]()
    for pause, tokens, patient in steps:
        now += pause
        wait = window.wait_seconds(tokens, now)
        assert wait is not None
        if wait and patient:
            now += wait
            assert window.wait_seconds(tokens, now) == 0
        elif wait:
            continue
        window.book(tokens, now)
        booked.append((now, tokens))
        assert sum(amount for at, amount in booked if at > now - MINUTE) <= 100
        assert len(window._slots) <= SLOTS + 2


def test_what_was_booked_by_a_clock_that_was_ahead_is_held_for_one_window_and_no_longer() -> None:
    window, now = Window(MINUTE, 100), 1000.0
    window.book(40, now)
    window.book(30, now + 3600)  # the clock is put right after this, an hour back
    window.book(20, now + 1)
    assert window.used == 50  # what was booked before has left in the hour that was none
    assert window.wait_seconds(60, now + 1) == pytest.approx(MINUTE + 1, abs=1)
    assert window.wait_seconds(60, now + 1 + MINUTE + 1) == 0
    assert (window.used, window.slots) == (0, {})


def test_what_is_written_down_late_moves_nothing_that_was_booked_since() -> None:
    window, now = Window(MINUTE, 100), 1000.0
    window.book(40, now + 2 * MINUTE)
    window.book(30, now)
    assert window.wait_seconds(61, now + 2 * MINUTE) == pytest.approx(MINUTE, abs=1)
    assert window.used == 40


def test_what_is_given_back_late_or_twice_changes_nothing_more(config: Config) -> None:
    window = Window(MINUTE, 100)
    window.book(50, 1000.0)
    window.give_back(30, 1000.0)
    window.give_back(80, 1000.0)
    assert window.used == 0
    window.book(50, 1000.0)
    assert window.wait_seconds(100, 1070.0) == 0
    window.give_back(50, 1000.0)
    assert window.used == 0


def test_what_was_booked_ahead_is_given_back_by_who_used_it_a_moment_later() -> None:
    window = Window(MINUTE, 100)
    window.book(50, 1000.0)
    window.book(20, 1001.5)
    window.give_back(60, 1000.0 + LEASE_SECONDS)
    assert window.used == 10
    window.give_back(60, 1004.0)
    assert window.used == 10


# --- public prompts ---


def test_common_tokens_are_whole_blocks() -> None:
    assert common_tokens([1, 2, 3, 4, 5], [1, 2, 3, 4, 9, 9], 2) == 4
    assert common_tokens([1, 2, 3], [1, 2, 3], 2) == 2
    assert common_tokens([9], [1], 1) == 0
    assert common_tokens([], [], 16) == 0


@pytest.fixture
def texts(tmp_path: Path) -> "Mapping[str, Texts]":
    made = Texts({"tiny": write_tiny_tokenizer(tmp_path / "tiny")}, 0)
    return {"tiny": made}


async def test_a_public_prompt_is_what_every_conversation_with_it_begins_with(
    texts: Mapping[str, Texts], tmp_path: Path
) -> None:
    (tmp_path / "system.txt").write_text("You are a helpful butler. " * 3)
    sections = {"butler": PublicSection(model="tiny", file=str(tmp_path / "system.txt"))}
    public = await read_public_prompts(sections, texts["tiny"])
    system = {"role": "system", "content": "You are a helpful butler. " * 3}
    prompt = await texts["tiny"].prompt("tiny", [system, {"role": "user", "content": "Hi, I am secret"}], None)
    shared = public.tokens("tiny", prompt.tokens, 4)
    text = "".join(texts["tiny"].piece("tiny", token) for token in prompt.tokens[:shared])
    assert text.count("butler") == 3
    assert "Hi" not in text
    assert shared % 4 == 0
    assert public.tokens("other", prompt.tokens, 4) == 0


async def test_a_tenant_may_keep_apart_what_is_public(config: Config) -> None:
    public = PublicPrompts({"m": [[1, 2, 3, 4, 5, 6, 7, 8]]})
    gate = gate_of(config, public)
    me = asked(gate, "sk-alpha")
    assert gate.public_tokens(me, "m", [1, 2, 3, 4, 5, 6, 9, 9]) == 4
    gate.tenants = {"acme": type(config.tenants["acme"])(public_prompts=False)}
    assert gate.public_tokens(me, "m", [1, 2, 3, 4, 5, 6, 9, 9]) == 0


@pytest.mark.parametrize(
    ("section", "why"),
    [
        (PublicSection(model="tiny"), "either text or file"),
        (PublicSection(model="tiny", text="a", file="b"), "either text or file"),
        (PublicSection(model="tiny", file="/nowhere/at/all"), "cannot be read"),
        (PublicSection(model="huge", text="a"), "can't be rendered"),
    ],
)
async def test_a_public_prompt_that_can_not_be_made_is_refused(
    texts: Mapping[str, Texts], section: PublicSection, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        await read_public_prompts({"it": section}, texts["tiny"])


def test_many_keys_are_found_at_once() -> None:
    ring = KeyRing({f"k{i}": KeySection(tenant="t", key=f"sk-{i}") for i in range(2000)})
    assert ring.find("bearer sk-1999").name == "k1999"
