"""The connector's pure parts: settings, shards, keys with what changes KV beside tokens, blocks to save, hand-overs."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from mooncask.client.hashing import chain, encode_extra
from mooncask.engine_adapter.vllm.handover import HandOver, wants_description
from mooncask.engine_adapter.vllm.key_chain import BlockExtras, Item, KeyChain
from mooncask.engine_adapter.vllm.kv_groups import KvGroups
from mooncask.engine_adapter.vllm.request_state import RequestState, Span
from mooncask.engine_adapter.vllm.settings import ConnectorSettings
from mooncask.engine_adapter.vllm.shards import Shard
from mooncask.errors import ConfigError

ROOT = bytes(range(16))


@dataclass
class Request:
    all_token_ids: list[int] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_preemptions: int = 0
    request_id: str = "r"
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    skip_reading_prefix_cache: bool = False


def state(tokens: int, prompt: int | None = None) -> RequestState:
    """With as many blocks of 4 tokens as the tokens fill, or begin to."""
    request = Request(list(range(tokens)), tokens if prompt is None else prompt)
    return RequestState(request, KvGroups(4), KeyChain(ROOT, 4), [list(range(100, 100 + -(-tokens // 4)))])


def saved(one: RequestState, computed: int, generated: bool) -> Span:
    one.computed = computed
    return one.plan_save(0, generated)


# --- settings and shards ---------------------------------------------------------------------------------------------


def test_an_empty_configuration_is_one() -> None:
    assert ConnectorSettings.parse({}).deadline_seconds == 1.0


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"sokcet": "/run/s"}, "sokcet"),
        ({"deadline_ms": "50"}, "deadline_ms"),
        ({"deadline_ms": True}, "deadline_ms"),
        ({"threads": 0}, "threads"),
        ({"load": "sometimes"}, "load"),
        ({"mode": "write_trough"}, "mode"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(extra: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"kv_connector_extra_config.{named}"):
        ConnectorSettings.parse(extra)


def test_one_worker_has_no_shard_and_each_of_several_its_own() -> None:
    assert Shard().name == "" and Shard().namespace("kv") == "kv"
    assert Shard(1, 2, 0, 3).name == "tp 1/2, pp 0/3"
    assert Shard(1, 2, 0, 3).namespace("kv") == "kv-tp1of2-pp0of3"
    assert Shard(1, 2, 0, 3).namespace("") == ""


def test_latent_attention_has_one_shard_for_all_ranks_and_the_first_writes_it() -> None:
    ranks = [Shard(rank, 4, 0, 1, same_on_all_tp=True) for rank in range(4)]
    assert {rank.name for rank in ranks} == {"tp any, pp 0/1"}
    assert [rank.writes for rank in ranks] == [True, False, False, False]
    assert all(Shard(rank, 4).writes for rank in range(4))


# --- keys ------------------------------------------------------------------------------------------------------------


def test_a_chain_that_grows_is_that_of_all_tokens_at_once() -> None:
    tokens = list(range(1000, 1050))
    grown = KeyChain(ROOT, 8)
    for length in range(51):
        assert grown.extend(tokens, length) == chain(ROOT, tokens[:length], 8)


def test_an_image_changes_the_blocks_it_covers_and_all_after_them() -> None:
    tokens = [7] * 64
    plain, cat, dog = (
        KeyChain(ROOT, 8, extras=BlockExtras(items=items)).extend(tokens, 64)
        for items in ((), (Item("cat", 20, 10),), (Item("dog", 20, 10),))
    )
    assert plain[:2] == cat[:2] == dog[:2]
    assert not {*plain[2:]} & {*cat[2:]} and not {*cat[2:]} & {*dog[2:]}


def test_an_image_that_lies_elsewhere_in_a_block_is_another_block() -> None:
    there, elsewhere = (BlockExtras(items=(Item("cat", offset, 4),)).of_block(0, 32) for offset in (3, 4))
    assert there != elsewhere and b"cat" in there
    assert BlockExtras(items=(Item("cat", 3, 4),)).of_block(32, 64) == b""


def test_lora_and_prompt_embeddings_are_in_every_block_that_they_change() -> None:
    extras = BlockExtras(lora=b"adapter", embeds=lambda start, stop: b"e" if start < 8 else b"")
    assert extras.of_block(0, 8) == encode_extra({"lora": b"adapter", "embeds": b"e"})
    assert extras.of_block(8, 16) == encode_extra({"lora": b"adapter"})


# --- what to save ----------------------------------------------------------------------------------------------------


def test_blocks_are_saved_once_and_when_they_are_full() -> None:
    one = state(tokens=11)
    assert saved(one, 3, True) == Span(0, 0)
    assert saved(one, 6, True) == Span(0, 1)  # a chunk of prefill ends inside block 1
    assert saved(one, 11, True) == Span(1, 2)
    assert saved(one, 11, True) == Span(2, 2)


def test_tokens_that_are_still_being_sampled_fill_no_block() -> None:
    one = state(tokens=7)
    assert saved(one, 9, True) == Span(0, 1)


def test_generated_tokens_fill_blocks_only_when_wanted() -> None:
    assert saved(state(tokens=12, prompt=6), 12, False) == Span(0, 1)
    assert saved(state(tokens=12, prompt=6), 12, True) == Span(0, 3)


def test_what_was_loaded_is_not_saved_again_and_what_failed_to_load_is() -> None:
    one = state(tokens=20)
    one.promised = Span(1, 4)
    assert one.plan_load(3) == Span(1, 4)
    one.loaded(3)
    assert saved(one, 20, True) == Span(4, 5)
    other = state(tokens=20)
    other.promised = Span(1, 4)
    other.plan_load(3)
    other.loaded(1)
    assert saved(other, 20, True) == Span(2, 5)


def test_a_load_is_tried_once_and_once_more_after_a_preemption() -> None:
    one = state(tokens=20)
    assert one.may_load
    one.promised = Span(0, 2)
    one.plan_load(2)
    assert not one.may_load
    one.preempted()
    one.request.num_preemptions = 1  # type: ignore[misc]  # a property of vLLM's
    assert one.may_load and one.table == [] and one.saved == 0


def test_a_resumed_request_asks_for_what_it_generated_too() -> None:
    one = state(tokens=8, prompt=8)
    assert len(one.keys()) == 2
    one.request.all_token_ids.extend(range(50, 59))  # type: ignore[attr-defined]  # vLLM's list grows
    assert one.keys() == chain(ROOT, [*range(8), *range(50, 59)], 4)


# --- hand-over -------------------------------------------------------------------------------------------------------

KEYS = chain(ROOT, range(12), 4)
HANDOVER = HandOver("f" * 32, KEYS[1].hex(), 2, "node-1", "0011")


def test_a_hand_over_is_read_as_it_was_written() -> None:
    assert HandOver.read(HANDOVER.params(remote_decode=False)) == HANDOVER
    assert HANDOVER.params(remote_decode=True)["do_remote_prefill"] is True


@pytest.mark.parametrize(
    "params", [None, {}, {"mooncask": 3}, {"mooncask": {"family": "f"}}, {"do_remote_prefill": True}]
)
def test_what_is_no_hand_over_is_none(params: dict[str, Any] | None) -> None:
    assert HandOver.read(params) is None


def test_a_hand_over_of_another_family_or_prompt_is_refused_by_name() -> None:
    assert HANDOVER.refusal("f" * 32, KEYS) == ""
    assert "family mismatch" in HANDOVER.refusal("e" * 32, KEYS)
    assert "other tokens" in HANDOVER.refusal("f" * 32, chain(ROOT, range(1, 13), 4))
    assert "this request has 1" in HANDOVER.refusal("f" * 32, KEYS[:1])


def test_a_router_that_asks_for_a_description_is_told_from_one_that_does_not() -> None:
    assert wants_description({"mooncask": {"describe": True}})
    assert not any(wants_description(params) for params in (None, {}, {"mooncask": {"describe": 1}}, {"mooncask": 3}))
