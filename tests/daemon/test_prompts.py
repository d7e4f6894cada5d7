"""Which look-ups are one request."""

from collections.abc import Sequence

import pytest

from mooncask.daemon import prompts as prompts_module
from mooncask.daemon.insight.lookups import Lookup, LookupKind
from mooncask.daemon.prompts import HANDOVER_SECONDS, MERGE_SECONDS, Prompts
from mooncask.tiers.block import NO_HINT, Hint
from mooncask.tiers.namespace import Namespace, NamespaceSpec

KV = Namespace(1, NamespaceSpec("kv-a", fingerprint=b"model"))
SHARD = Namespace(2, NamespaceSpec("kv-b", fingerprint=b"model", shard="1/2"))
OTHER = Namespace(3, NamespaceSpec("kv-c", fingerprint=b"other model"))
CHAIN = [b"a", b"b", b"c", b"d"]


def match(
    seconds: float,
    hits: int,
    keys: Sequence[bytes] = CHAIN,
    client: bytes = b"1",
    namespace: Namespace = KV,
) -> Lookup:
    return Lookup(LookupKind.MATCH, namespace, keys, hits, NO_HINT, seconds, client)


def acquire(
    seconds: float,
    keys: Sequence[bytes],
    client: bytes = b"1",
    *,
    hits: int | None = None,
    hint: Hint = NO_HINT,
    waits: bool = False,
) -> Lookup:
    found = len(keys) if hits is None else hits
    return Lookup(LookupKind.ACQUIRE, KV, keys, found, hint, seconds, client, found, waits)


def told(*lookups: Lookup) -> list[tuple[float, int]]:
    """(time, blocks) of the requests these look-ups are."""
    prompts = Prompts()
    for lookup in lookups:
        prompts.see(lookup)
    return [(prompt.seconds, len(prompt.keys)) for prompt in prompts.rest()]


def test_a_match_and_the_acquire_of_what_it_found_are_one_request() -> None:
    assert told(match(0, 2), acquire(0.1, CHAIN[:2])) == [(0, 4)]


def test_a_chain_acquired_in_parts_is_one_request_even_if_the_engine_has_the_beginning_itself() -> None:
    assert told(match(0, 4), acquire(0.1, CHAIN[:2]), acquire(0.2, CHAIN[2:])) == [(0, 4)]
    assert told(match(0, 4), acquire(0.1, CHAIN[1:3])) == [(0, 4)]


def test_asking_again_before_anything_was_acquired_is_the_same_request() -> None:
    assert told(match(0, 2), match(1, 2), match(5, 2), match(9, 1), acquire(9.5, CHAIN[:2])) == [(0, 4)]


def test_asking_again_after_an_acquire_is_another_request() -> None:
    assert told(match(0, 2), acquire(0.1, CHAIN[:2]), match(1, 2), acquire(1.1, CHAIN[:2])) == [(0, 4), (1, 4)]


def test_asking_again_and_finding_more_is_another_request() -> None:
    """What was missing has been put meanwhile: the first request is over."""
    assert told(match(0, 0), match(1, 4)) == [(0, 4), (1, 4)]


def test_asking_again_much_later_is_another_request() -> None:
    assert told(match(0, 2), match(MERGE_SECONDS + 0.1, 2)) == [(0, 4), (MERGE_SECONDS + 0.1, 4)]


def test_clients_that_never_match_are_counted_by_their_acquires() -> None:
    assert told(acquire(0, CHAIN), acquire(1, CHAIN)) == [(0, 4), (1, 4)]


def test_equal_prompts_of_two_clients_are_two_requests() -> None:
    assert told(match(0, 4), match(0.1, 4, client=b"2"), acquire(0.2, CHAIN), acquire(0.3, CHAIN, b"2")) == [
        (0, 4),
        (0.1, 4),
    ]


def test_a_decode_worker_that_takes_over_a_prompt_makes_no_request_of_its_own() -> None:
    assert told(match(0, 0), match(10, 4, client=b"2"), acquire(10.1, CHAIN, b"2")) == [(0, 4)]
    assert told(match(0, 0), acquire(0.1, CHAIN, b"2", hits=0, waits=True)) == [(0, 4)]
    late = HANDOVER_SECONDS + 1
    assert told(match(0, 0), match(late, 4, client=b"2")) == [(0, 4), (late, 4)]


def test_the_shards_of_one_model_ask_once() -> None:
    assert told(match(0, 2), match(0.1, 2, client=b"2", namespace=SHARD)) == [(0, 4)]
    assert told(match(0, 2), match(0.1, 2, client=b"2", namespace=OTHER)) == [(0, 4), (0.1, 4)]


def test_hints_of_the_acquire_belong_to_the_request() -> None:
    prompts = Prompts()
    prompts.see(match(0, 2))
    prompts.see(acquire(0.1, CHAIN[:2], hint=Hint(conversation=7, turn=3, expected_output=99)))
    assert prompts.due(MERGE_SECONDS - 0.1) == []
    (prompt,) = prompts.due(MERGE_SECONDS)
    assert (prompt.conversation, prompt.turn, prompt.output_tokens) == (7, 3, 99)


def test_objects_make_no_requests() -> None:
    photos = Namespace(4, NamespaceSpec("photos", kind="object"))
    assert told(Lookup(LookupKind.HTTP_GET, photos, [b"a"], 1, NO_HINT, 0.0)) == []


def test_requests_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts_module, "OPEN_MAX", 10)
    prompts = Prompts()
    for number in range(15):
        prompts.see(match(number / 100, 0, keys=[bytes([number])]))
    assert len(prompts.due(0.2)) == 5
    assert len(prompts) == 10
