"""The rules of context caching that need no server: records and their changes, what may be asked, how a chat names a cache."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncask.conductor.serving.billing.lines import StorageLine, decode_line
from mooncask.conductor.serving.billing.meter import Meter
from mooncask.conductor.serving.caching.records import (
    Cache,
    Content,
    Place,
    Status,
    common_tokens,
    ended,
    failed,
    of_tenant,
    pending,
    ready,
    until,
)
from mooncask.conductor.serving.caching.reference import matched_messages, read_reference
from mooncask.conductor.serving.caching.requests import Create, Listing, checked_create, expiry, read_listing
from mooncask.conductor.serving.caching.serving import listed
from mooncask.conductor.serving.caching.shelf import Shelf
from mooncask.conductor.serving.door.gate import CallUsage
from mooncask.conductor.serving.state.opening import opened_state
from mooncask.errors import BadField, NoSuchCache

PLACE = Place("n1", "unix:/s", "ns")


def cache(**more: Any) -> Cache:
    given: dict[str, Any] = {"id": "cache-1", "tenant": "t", "model": "m", "created_at": 0.0, "expired_at": 3600.0}
    return Cache(**{**given, "tokens": 64, "digest": "d", **more})


# --- records ---


def test_a_cache_is_stored_for_the_times_in_which_it_was_ready() -> None:
    one = ready(cache(), PLACE, 100.0)
    assert (one.stored(99.0), one.stored(161.0), one.minutes(161.0)) == (0.0, 61.0, 2)
    lost = pending(one, 160.0)
    assert (lost.status, lost.stored(900.0), lost.minutes(900.0)) == (Status.PENDING, 60.0, 1)
    again = ready(lost, PLACE, 1000.0)
    assert again.minutes(1030.0) == 2
    over = ended(again, 5000.0)
    assert over.stored(9000.0) == 60.0 + 2600.0  # until its time was over, not until it was noticed


def test_another_end_leaves_what_is_ready_ready_and_revives_what_is_over() -> None:
    one = ready(cache(), PLACE, 0.0)
    assert until(one, 9000.0, 10.0).status is Status.READY
    assert until(ended(one, 3700.0), 9000.0, 4000.0).status is Status.PENDING


def test_a_cache_that_can_t_be_built_is_tried_again_a_few_times() -> None:
    one, waits = cache(), []
    while one.status is Status.PENDING:
        one = failed(one, "no luck", 0.0)
        waits.append(one.retry_at)
    assert waits[:-1] == sorted(waits[:-1]) and one.error is not None and one.error.message == "no luck"


def test_no_tenant_s_keys_begin_as_another_s() -> None:
    names = ["a", "a/b", "a%2Fb", "ab", "ä", "a/"]
    for name in names:
        assert [other for other in names if of_tenant(other).startswith(of_tenant(name))] == [name]


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=40), st.integers(1, 8))
def test_common_tokens_are_the_longest_common_beginning_in_whole_blocks(
    one: list[int], other: list[int], block: int
) -> None:
    found = common_tokens(one, other, block)
    assert one[:found] == other[:found] and found % block == 0
    longer = found + block
    assert longer > min(len(one), len(other)) or one[:longer] != other[:longer]


def test_without_a_store_nothing_is_common() -> None:
    assert common_tokens([1, 2], [1, 2], 0) == 0


# --- what may be asked ---


def test_a_time_to_live_is_given_in_one_way_and_not_too_long() -> None:
    assert expiry(None, None, 50.0) is None
    assert (expiry(10, None, 50.0), expiry(None, 60.0, 50.0)) == (60.0, 60.0)
    for ttl, at in ((10, 60.0), (0, None), (-1, None), (3601, None), (None, 50.0), (None, 3651.0)):
        with pytest.raises(BadField, match=r"ttl|expired_at"):
            expiry(ttl, at, 50.0)


@pytest.mark.parametrize("tag", ["a", "A-b_c.d", "v1", "x" * 128])
def test_a_tag_is_a_letter_and_what_may_follow(tag: str) -> None:
    checked_create(Create("m", [{"role": "user"}], tags=[tag]))


@pytest.mark.parametrize("tag", ["", "1a", "-a", "a b", "ä", "x" * 129, "a\n"])
def test_what_is_no_tag_is_refused(tag: str) -> None:
    with pytest.raises(BadField, match="letter first"):
        checked_create(Create("m", [{"role": "user"}], tags=[tag]))


@pytest.mark.parametrize(
    "more",
    [
        {"description": "x" * 513},
        {"metadata": {"": "v"}},
        {"metadata": {"k": "v" * 513}},
        {"tags": ["a"] * 17},
        {"messages": [{"role": "assistant", "partial": True}]},
    ],
)
def test_what_is_longer_than_documented_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(BadField):
        checked_create(Create(**{"model": "m", "messages": [{"role": "user"}], **more}))


def test_a_listing_is_read_from_its_query() -> None:
    query = [("limit", "5"), ("order", "asc"), ("after", "x"), ("metadata[a]", "1"), ("other", "")]
    assert read_listing(query) == Listing(5, True, "x", "", {"a": "1"})
    for name, value in (("limit", "0"), ("limit", "101"), ("limit", "many"), ("order", "up")):
        with pytest.raises(BadField, match=name):
            read_listing([(name, value)])


def test_pages_of_a_list_follow_each_other_in_both_directions() -> None:
    caches = [cache(id=f"c{n}", created_at=float(n), metadata={"odd": str(n % 2)}) for n in range(10)]

    def page(**asked: Any) -> tuple[list[str], bool]:
        found, more = listed(caches, Listing(**asked))
        return [one.id for one in found], more

    assert page(limit=3) == (["c9", "c8", "c7"], True)
    assert page(limit=3, after="c7") == (["c6", "c5", "c4"], True)
    assert page(limit=3, before="c6") == (["c9", "c8", "c7"], False)
    assert page(limit=2, before="c6") == (["c8", "c7"], True)
    assert page(limit=3, after="c2", ascending=True) == (["c3", "c4", "c5"], True)
    assert page(limit=9, after="c8", ascending=True) == (["c9"], False)
    assert page(metadata={"odd": "1"}) == (["c9", "c7", "c5", "c3", "c1"], False)
    with pytest.raises(NoSuchCache):
        page(after="c77")


# --- how a chat names a cache ---


def test_headers_and_a_first_message_name_a_cache() -> None:
    plain = [{"role": "user", "content": "x"}]
    assert read_reference({}, plain, None) is None
    headers = {"X-Msh-Context-Cache": "c1", "X-Msh-Context-Cache-Reset-TTL": "60", "X-Msh-Context-Cache-DryRun": "1"}
    named = read_reference(headers, plain, None)
    assert named is not None and (named.id, named.reset_ttl, named.dry_run, named.replaces) == ("c1", 60, True, False)
    named = read_reference({}, [{"role": "cache", "content": "tag=a;reset_ttl=5"}], None)
    assert named is not None and (named.id, named.tag, named.reset_ttl, named.replaces) == ("", "a", 5, True)


@pytest.mark.parametrize(
    "content",
    ["", ";", "cache_id=", "cache_id=a;", "cache_id=a;tag=b", "cache_id=a;cache_id=b", "id=a", "tag=a;dry_run=2"],
)
def test_a_message_that_names_no_cache_is_refused(content: str) -> None:
    with pytest.raises(BadField, match="cache_id"[:5] if "dry_run" not in content else "dry_run"):
        read_reference({}, [{"role": "cache", "content": content}], None)


def test_tools_are_left_out_where_a_message_names_the_cache() -> None:
    with pytest.raises(BadField, match="tools"):
        read_reference({}, [{"role": "cache", "content": "tag=a"}], [{}])


def test_what_differs_from_the_cached_messages_is_named() -> None:
    tools = [{"type": "function"}]
    content = Content(
        messages=[{"role": "system", "content": "a"}, {"role": "user", "content": "b"}], tools=tools, tokens=[]
    )
    good = [*content.messages, {"role": "user", "content": "c"}]
    matched_messages("c1", good, tools, content)
    for messages, field in (
        ([good[0], {"role": "user", "content": "B"}], r"messages\[1\].content"),
        ([good[0], {**good[1], "name": "x"}], r"messages\[1\].name"),
        (good[:1], "2 messages, the request 1"),
    ):
        with pytest.raises(BadField, match=field):
            matched_messages("c1", messages, tools, content)
    with pytest.raises(BadField, match="tools"):
        matched_messages("c1", good, None, content)


# --- the meter ---


async def test_a_call_is_metered_once_however_often_it_is_told() -> None:
    async with opened_state("memory:", "p") as state:
        meter = Meter(state, Shelf(state), 10.0)
        usage = CallUsage("r1", "t", "m", 10, 0, 5, "stop", 100.0, 1.0)
        async with meter.writing():
            meter.call(usage)
            meter.call(usage)
        meter.call(usage)
        await meter.flush()
        assert len(await state.entries("t", 0.0, 200.0, 0, 9)) == 1


async def test_minutes_of_storage_are_metered_once_by_several_at_once() -> None:
    async with opened_state("memory:", "p") as state:
        shelf = Shelf(state)
        one = ready(cache(), PLACE, 0.0)
        await shelf.add(one, Content(messages=[], tools=None, tokens=[]))
        first, second = Meter(state, shelf, 10.0), Meter(state, shelf, 10.0)
        assert await first.storage(one, 61.0) == 2
        assert await second.storage(one, 200.0) == 4  # with an old copy of the record
        assert await first.storage(one, 200.0) == 4
        lines = [decode_line(entry.value) for entry in await state.entries("t", 0.0, 999.0, 0, 9)]
        assert [line.minutes for line in lines if isinstance(line, StorageLine)] == [2, 2]


async def test_a_claim_is_one_s_until_it_is_given_back_or_has_run_out() -> None:
    async with opened_state("memory:", "p") as state:
        shelf = Shelf(state)
        assert await shelf.claim("x", "one", 0.0, 10.0)
        assert not await shelf.claim("x", "two", 5.0, 10.0)
        assert await shelf.claim("x", "one", 9.0, 10.0)
        assert await shelf.claim("x", "two", 20.0, 10.0)
        await shelf.unclaim("x", "one")
        assert not await shelf.claim("x", "one", 21.0, 10.0)
        await shelf.unclaim("x", "two")
        assert await shelf.claim("x", "one", 22.0, 10.0)


async def test_a_record_that_changes_under_a_change_is_changed_again() -> None:
    async with opened_state("memory:", "p") as state:
        shelf, one = Shelf(state), cache()
        await shelf.add(one, Content(messages=[], tools=None, tokens=[]))
        assert await shelf.change("t/none", lambda c: c) is None
        changed = await shelf.change(one.key, lambda c: msgspec.structs.replace(c, name="x"))
        assert changed is not None and (await shelf.get("t", "cache-1")).name == "x"
        for tenant, id in (("u", "cache-1"), ("t", "../t/cache-1")):
            with pytest.raises(NoSuchCache):
                await shelf.get(tenant, id)
