"""Who asked for what: observers hear of every look-up, in order, after the reader has its answer."""

import logging
from collections.abc import Sequence

import pytest
from child_processes import until
from http_door import running_http
from local_daemon import running_daemon
from raw_client import key, payload

from mooncask.client import wire
from mooncask.daemon.insight import lookups as lookups_module
from mooncask.daemon.insight.lookups import Lookup, LookupFeed, LookupKind
from mooncask.tiers.block import NO_HINT
from mooncask.tiers.namespace import Namespace, NamespaceSpec

NAMESPACE = Namespace(1, NamespaceSpec("kv-a"))


async def test_observers_hear_of_matches_and_acquires_with_their_usable_prefix() -> None:
    async with running_daemon() as daemon:
        heard: list[Lookup] = []
        daemon.service.lookups.add(heard.extend)
        client = await daemon.client()
        namespace = await client.open("kv-a")
        await client.put(namespace, {key(1): payload(1), key(2): payload(2), key(4): payload(4)})
        asked = [key(number) for number in (1, 2, 3, 4)]
        await client.ask(wire.Matched, wire.Match, namespace, asked)
        await client.acquire(namespace, asked)
        await client.acquire(namespace, asked[:2])
        await until(lambda: len(heard) == 3)
        kinds = [(lookup.kind, list(lookup.keys), lookup.hits) for lookup in heard]
        assert kinds == [
            (LookupKind.MATCH, asked, 2),
            (LookupKind.ACQUIRE, asked, 2),
            (LookupKind.ACQUIRE, asked[:2], 2),
        ]
        assert {lookup.namespace.spec.name for lookup in heard} == {"kv-a"}
        assert {lookup.hint.tenant for lookup in heard} == {"default"}
        assert [lookup.seconds for lookup in heard] == sorted(lookup.seconds for lookup in heard)
        await client.close()


async def test_a_get_over_http_is_a_lookup_too() -> None:
    async with running_http() as http:
        heard: list[Lookup] = []
        http.daemon.service.lookups.add(heard.extend)
        await http.ask("PUT", "/photos")
        await http.ask("PUT", "/photos/a", data=b"x")
        await http.ask("GET", "/photos/a")
        await http.ask("GET", "/photos/b")
        await until(lambda: len(heard) == 2)
        assert [(lookup.kind, lookup.keys, lookup.hits) for lookup in heard] == [
            (LookupKind.HTTP_GET, [b"a"], 1),
            (LookupKind.HTTP_GET, [b"b"], 0),
        ]


async def test_one_observers_fault_keeps_no_news_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def faulty(lookups: Sequence[Lookup]) -> None:
        raise RuntimeError("a fault")

    feed, heard = LookupFeed(), list[Lookup]()
    feed.add(faulty)
    feed.add(heard.extend)
    with caplog.at_level(logging.CRITICAL):
        feed.note(LookupKind.MATCH, NAMESPACE, [key(1)], 0, NO_HINT)
        feed.flush()
    assert len(heard) == 1
    caplog.clear()


async def test_what_nobody_has_time_to_hear_of_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups_module, "PENDING_KEYS_MAX", 100)
    feed, heard = LookupFeed(), list[Lookup]()
    feed.add(heard.extend)
    for _ in range(30):
        feed.note(LookupKind.MATCH, NAMESPACE, [key(number) for number in range(10)], 0, NO_HINT)
    feed.flush()
    assert (len(heard), feed.dropped) == (11, 19)
    feed.note(LookupKind.MATCH, NAMESPACE, [key(1)], 0, NO_HINT)
    feed.flush()
    assert len(heard) == 12
