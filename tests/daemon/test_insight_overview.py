"""The overview and the events: what is told is what happened, of the caller's own things, and it costs no reader anything."""

import os

from child_processes import until
from control_pages import PagesOf, open_kv, running_pages
from raw_client import key, payload

from mooncask.client import control, wire
from mooncask.client.control_client import ControlClient


def flow(found: control.Overview, kind: str, tier: str) -> control.Flow:
    return next(one for one in found.flows if (one.kind, one.tier) == (kind, tier))


async def test_flows_are_counted_in_blocks_and_bytes_with_their_rates() -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        keys = [key(number) for number in range(8)]
        await pages.put_chain(namespace, keys)
        got = await pages.client.acquire(namespace, [*keys, key(99)])
        assert len(got.payloads) == 8
        await until(lambda: pages.daemon.plane.insight.traffic.flows.blocks)
        found = await pages.ask(ControlClient.overview)
        put, hit, miss = flow(found, "put", "dram"), flow(found, "hit", "dram"), flow(found, "miss", "")
        assert (put.total, put.total_bytes) == (8, 8 * 8192) and put.rate_bytes > 0
        assert (hit.total, hit.total_bytes) == (8, 8 * 8192) and (miss.total, miss.total_bytes) == (1, 8192)
        assert found.window_seconds <= 10 and found.requests_rate > 0 and found.ready


async def test_tiers_clients_and_namespaces_are_those_of_the_caller() -> None:
    async with running_pages({"tenants.astro.uids": [os.getuid()]}) as pages:
        await pages.daemon.service.door.open("default", wire.Open(0, "kv-other", family={"block_tokens": "16"}))
        namespace = await open_kv(pages.client, "kv-a")
        await pages.client.put(namespace, {key(1): payload(1)})
        got = await pages.client.acquire(namespace, [key(1)])
        await pages.client.reserve(namespace, {key(2): payload(2)})
        found = await pages.ask(ControlClient.overview)
        assert [view.name for view in found.namespaces] == ["kv-a"]
        [client] = found.clients
        assert (client.pid, client.uid, client.tenant) == (os.getpid(), os.getuid(), "astro")
        assert (client.connections, client.leases, client.leased_bytes, client.reservations) == (1, 1, 8192, 1)
        [dram] = found.tiers
        assert (dram.tier, dram.policy, dram.blocks) == ("dram", "lru", 1) and dram.leased_bytes == 8192
        assert got.payloads
        theirs = await pages.daemon.plane.insight.overview("default")
        assert (theirs.clients, [view.name for view in theirs.namespaces]) == ([], ["kv-other"])


async def test_hit_rates_are_of_tokens_of_contiguous_prefixes() -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        await open_kv(pages.client, "kv-idle")
        await pages.put_chain(namespace, [key(1), key(2)])
        await pages.client.ask(wire.Matched, wire.Match, namespace, [key(1), key(2), key(7), key(1)])
        await until(lambda: pages.daemon.plane.insight.traffic.flows.blocks)
        found = await pages.ask(ControlClient.overview)
        used, idle = found.namespaces
        assert (used.requested_tokens, used.hit_tokens, used.hit_rate) == (64, 32, 0.5)
        assert idle.hit_rate == -1 and found.hit_rate == 0.5


async def test_a_common_beginning_is_hotter_than_what_continues_it() -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        await pages.put_chain(namespace, [key(1), key(2), key(3)])
        for end in (10, 20, 30):
            await pages.put_chain(namespace, [key(end), key(end + 1)], parent=key(3), first=3)
        for times, end in ((6, 10), (3, 20), (3, 30)):
            for _ in range(times):
                await pages.client.acquire(namespace, [key(1), key(2), key(3), key(end), key(end + 1)])
        store = pages.daemon.store
        space = store.namespace("kv-a")
        assert space is not None
        await until(lambda: store.catalogue.hits[space.index[key(1)]] == 12)
        await until(lambda: bool(pages.daemon.plane.insight.traffic.flows.blocks))
        hot = (await pages.ask(ControlClient.overview)).hot_chains
        assert [chain.key for chain in hot] == [key(3).hex(), key(11).hex(), key(21).hex(), key(31).hex()]
        beginning = hot[0]
        assert (beginning.depth, beginning.tokens, beginning.size_bytes) == (2, 48, 3 * 8192)
        assert beginning.hits == 12 and beginning.rate > hot[1].rate > hot[2].rate


async def test_events_tell_of_departures_and_misses_newest_first() -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        await pages.put_chain(namespace, [key(1), key(2)])
        for number in (1, 2):
            await pages.ask(ControlClient.evict, "kv-a", key(number))
        await pages.client.acquire(namespace, [key(5), key(6)])
        await pages.client.acquire(namespace, [key(1)])
        found = await _events(pages, misses=2)
        assert [(left.key, left.reason, left.tier) for left in found.departures] == [
            (key(2).hex(), "deleted", "dram"),
            (key(1).hex(), "deleted", "dram"),
        ]
        newest, older = found.misses
        assert (newest.key, newest.verdict, newest.asked_blocks, newest.hit_blocks) == (key(1).hex(), "deleted", 1, 0)
        assert (older.key, older.verdict, older.asked_blocks) == (key(5).hex(), "never_stored", 2)
        assert older.time_seconds <= newest.time_seconds
        assert len((await pages.ask(ControlClient.events, 1)).misses) == 1


async def test_a_block_that_came_after_its_miss_is_told_so() -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        await pages.client.acquire(namespace, [key(1)])
        await pages.put_chain(namespace, [key(1)])
        [miss] = (await _events(pages, misses=1)).misses
        assert miss.verdict == "never_stored" and miss.text.endswith("stored since")
        await pages.ask(ControlClient.evict, "kv-a", key(1))
        [miss] = (await _events(pages, misses=1)).misses
        assert miss.verdict == "never_stored", "it left after the miss, so that is not why"


async def test_events_of_other_tenants_are_not_told() -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        await pages.put_chain(namespace, [key(1)])
        await pages.ask(ControlClient.evict, "kv-a", key(1))
        await pages.client.acquire(namespace, [key(1)])
        await _events(pages, misses=1)
        events = pages.daemon.plane.insight.events("somebody else", 100)
        assert (events.departures, events.misses) == ([], [])


async def _events(pages: PagesOf, misses: int) -> control.Events:
    await until(lambda: len(pages.daemon.plane.insight.misses.newest()) == misses)
    return await pages.ask(ControlClient.events)
