"""How Mooncask's own workers are spoken to: bodies that say what the call says, ids written once; and what ends a wait."""

import time

import msgspec

from mooncask.client.worker_api import DecodeCall, PrefillCall, Registration, Report, Role, Sampling
from mooncask.conductor.serving.dispatch.ending import Ending
from mooncask.conductor.serving.dispatch.pools import Worker
from mooncask.conductor.serving.dispatch.speech import WRITTEN_MAX, MooncaskSpeech

TOLD = Registration(
    name="w", incarnation="1", address="http://h:1", role=Role.PREFILL, model="m", family={}, positions_max=99
)
WORKER = Worker(TOLD, time.monotonic(), Report(name="w", incarnation="1", role=Role.PREFILL))
TOKENS = list(range(500))


def test_a_body_says_what_the_call_says() -> None:
    speech = MooncaskSpeech("secret", 1.0)
    prefill = PrefillCall(id='an "id":"x",', tokens=TOKENS, cache_salt="s", priority=7)
    decode = DecodeCall(id=prefill.id, tokens=TOKENS, max_tokens=3, sampling=Sampling(temperature=0.5, stop_tokens=[2]))
    body = speech.asked(WORKER, prefill).body
    assert msgspec.json.decode(body.decode(), type=PrefillCall) == prefill
    assert body.size == len(body.decode())
    assert msgspec.json.decode(speech.asked(WORKER, decode).body.decode(), type=DecodeCall) == decode


def test_ids_are_written_once_for_a_prefill_and_its_decode_and_anew_for_others() -> None:
    speech = MooncaskSpeech("secret", 1.0)
    prefill, longer = PrefillCall(id="a", tokens=TOKENS), [*TOKENS, 1]
    decode, later = (DecodeCall(id="a", tokens=tokens, max_tokens=1) for tokens in (TOKENS, longer))
    first, second, third = (speech.asked(WORKER, call).body._value[1] for call in (prefill, decode, later))
    assert second is first
    assert msgspec.json.decode(third) == longer
    for number in range(WRITTEN_MAX + 5):
        speech.asked(WORKER, PrefillCall(id=f"{number}", tokens=[1]))
    assert len(speech._written._kept) == WRITTEN_MAX


def test_whoever_waits_for_an_ending_is_called_once_and_not_when_he_has_left() -> None:
    ending, called = Ending(), []
    with ending.calling(lambda: called.append("left")):
        pass
    with ending.calling(lambda: called.append("there")):
        ending.set()
        ending.set()
        assert ending.is_set() and called == ["there"]
    with ending.calling(lambda: called.append("late")):
        assert called == ["there", "late"]
