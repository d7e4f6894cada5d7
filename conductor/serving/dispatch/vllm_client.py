"""Speaks to vLLM API servers that have Mooncask's connector: POST /v1/completions with token ids, both ways.

A prefill is a completion of one token, which nobody sees; its reply carries the connector's hand-over, which the decode of
the same tokens takes along. vLLM says nothing while it prefills, so Started comes with the end; a decode that is asked before,
since the store has seen the prefill begin (`prefixes.py`), takes a hand-over along that is made here. What differs from
Mooncask's own workers: docs/ENGINES.md. Not here: whether a server is there and how it is doing (`vllm_members.py`).
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

import aiohttp
import msgspec

from mooncask.client.worker_api import (
    LINE_BYTES_MAX,
    Admitted,
    DecodeCall,
    DecodeDone,
    Failure,
    FailureKind,
    Logprob,
    PrefillCall,
    PrefillDone,
    Sampling,
    Started,
    StreamLine,
    TokenLogprobs,
    Tokens,
)
from mooncask.conductor.serving.dispatch.pools import Worker
from mooncask.conductor.serving.dispatch.speech import Asked, Body, Call, bounded_lines

PREFILLS_MAX = 4096
"""Remembered until they end, or their decode comes; beyond, the oldest is forgotten: its decode looks its prompt up like any."""
REFUSED = (400, 413, 422)
FULL = (429, 503)
TOKEN = "token_id:"
"""How vLLM writes a token in logprobs with `return_tokens_as_token_ids`."""


Key = TypeVar("Key")
Value = TypeVar("Value")


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    prompt_tokens_details: _Details | None = None

    @property
    def cached(self) -> int:
        """0 too from a server without --enable-prompt-tokens-details."""
        return (self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None) or 0


class _Logprobs(msgspec.Struct, frozen=True):
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]


class _Choice(msgspec.Struct, frozen=True):
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    code: int | str | None = None


class _Answer(msgspec.Struct, frozen=True):
    """A whole completion, one chunk of a stream, or an error: vLLM's fields that are read here."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    kv_transfer_params: dict[str, Any] | None = None
    error: _Error | None = None


class VllmSpeech:
    """`Speech` of vLLM servers. `keys`: their API keys, by worker name. `silence_seconds`: of an answer's stream."""

    def __init__(self, silence_seconds: float, keys: Mapping[str, str]) -> None:
        self._silence_seconds, self._keys = silence_seconds, keys
        self._handovers: OrderedDict[tuple[str, int], dict[str, Any]] = OrderedDict()
        self._busy_until: dict[str, float] = {}
        """By worker: when its latest prefill ended, on the monotonic clock."""
        self._sent: OrderedDict[tuple[str, str], float] = OrderedDict()
        """By worker and request: prefills that are under way."""
        self._names: OrderedDict[str, str] = OrderedDict()
        """By request: what the hand-over of its prefill is called, which is under way and has no decode yet."""

    def asked(self, worker: Worker, call: Call) -> Asked:
        model = worker.registration.served_as or worker.registration.model
        if isinstance(call, PrefillCall):
            name = secrets.token_hex(8)
            body, silence = prefill_body(model, call, name), None
            _remember(self._sent, (worker.name, call.id), time.monotonic())
            _remember(self._names, call.id, name)
        else:
            early = self._names.pop(call.id, "")
            handover = self._handovers.pop((call.id, len(call.tokens)), None) or early_handover(worker, call, early)
            body, silence = decode_body(model, call, handover), self._silence_seconds
        headers = {"Content-Type": "application/json"}
        if key := self._keys.get(worker.name):
            headers["Authorization"] = f"Bearer {key}"
        return Asked("/v1/completions", Body(msgspec.json.encode(body)), headers, silence)

    async def lines(self, worker: Worker, call: Call, response: aiohttp.ClientResponse) -> AsyncIterator[StreamLine]:
        if response.status != 200:
            yield failure_of(response.status, await _bounded_body(response))
        elif isinstance(call, PrefillCall):
            answer = msgspec.json.decode(await _bounded_body(response), type=_Answer)
            for line in self._prefilled(worker, call, answer):
                yield line
        else:
            async for line in _decoded(call, response.content):
                yield line

    def _prefilled(self, worker: Worker, call: PrefillCall, answer: _Answer) -> list[StreamLine]:
        handover = answer.kv_transfer_params
        if self._names.pop(call.id, "") and handover is not None:
            _remember(self._handovers, (call.id, len(call.tokens)), handover)
        now = time.monotonic()
        # vLLM computes prompts one after the other: its turn came when the one before was done.
        sent = self._sent.pop((worker.name, call.id), now)
        begun = max(sent, self._busy_until.get(worker.name, 0.0))
        self._busy_until[worker.name] = now
        cached = answer.usage.cached if answer.usage is not None else 0
        done = PrefillDone(
            prompt_tokens=len(call.tokens),
            cached_tokens=cached,
            computed_tokens=len(call.tokens) - cached,
            stored_blocks=_blocks(handover),
            queue_seconds=begun - sent,
            seconds=max(1e-6, now - begun),
        )
        return [Admitted(), Started(cached_tokens=cached), done]


def _remember(table: OrderedDict[Key, Value], key: Key, value: Value) -> None:
    table[key] = value
    while len(table) > PREFILLS_MAX:
        table.popitem(last=False)


def prefill_body(model: str, call: PrefillCall, name: str) -> dict[str, Any]:
    """`name` of the hand-over."""
    return {
        **_common(model, call),
        "max_tokens": 1,
        "temperature": 0.0,
        "kv_transfer_params": {"do_remote_decode": True, "mooncask": {"handover_id": name}},
    }


def early_handover(worker: Worker, call: DecodeCall, name: str) -> dict[str, Any] | None:
    """What the prefill called `name`, which is under way, will have handed over, as its connector would say it. None when there is
    no such prefill, or no store."""
    told = worker.registration.hashing
    if not name or not call.keys_digest or not call.wait_seconds or told is None:
        return None
    blocks = {
        "family": told.fingerprint,
        "keys_digest": call.keys_digest,
        "n_blocks": len(call.tokens) // told.block_tokens,
    }
    coming = {**blocks, "node": "", "handover_id": name, "wait_seconds": call.wait_seconds}
    return {"do_remote_prefill": True, "do_remote_decode": False, "mooncask": coming}


def decode_body(model: str, call: DecodeCall, handover: dict[str, Any] | None) -> dict[str, Any]:
    """Everything that chooses tokens is said: a server has defaults of its own, from the model's generation_config.json."""
    sampling = call.sampling
    body = {
        **_common(model, call),
        "max_tokens": call.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "stop_token_ids": sampling.stop_tokens,
        **_drawing(sampling),
    }
    if handover is not None:
        body["kv_transfer_params"] = handover
    return body


def _common(model: str, call: Call) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "prompt": call.tokens,
        "add_special_tokens": False,
        "skip_special_tokens": False,
        "ignore_eos": True,  # ends of answers are among the stop tokens
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    return {**body, "cache_salt": call.cache_salt} if call.cache_salt else body


def _drawing(sampling: Sampling) -> dict[str, Any]:
    """A seed only for who has asked for one: without, a continued answer does not draw its first numbers again."""
    drawing: dict[str, Any] = {}
    if sampling.seeded and sampling.temperature > 0:
        drawing["seed"] = sampling.seed
    if sampling.logprobs >= 0:
        drawing |= {"logprobs": sampling.logprobs, "return_tokens_as_token_ids": True}
    return drawing


async def _decoded(call: DecodeCall, content: aiohttp.StreamReader) -> AsyncIterator[StreamLine]:
    """Ends without a DecodeDone where the stream broke off."""
    decoder = msgspec.json.Decoder(_Answer)
    reason, made, cached, admitted = "", 0, 0, False
    async for line in bounded_lines(content):
        data = line.strip().removeprefix(b"data:").strip()
        if data == b"[DONE]":
            if reason:
                yield DecodeDone(
                    reason=reason, output_tokens=made, cached_tokens=cached, computed_tokens=len(call.tokens) - cached
                )
            return
        chunk = decoder.decode(data)
        if chunk.error is not None:
            code = chunk.error.code if isinstance(chunk.error.code, int) else 500
            yield failure_of(code, data)
            return
        if not admitted:
            admitted = True
            yield Admitted()
        for choice in chunk.choices:
            if choice.token_ids:
                made += len(choice.token_ids)
                yield Tokens(tokens=choice.token_ids, logprobs=_logprobs(choice.logprobs, call.sampling.logprobs))
            reason = choice.finish_reason or reason
        if chunk.usage is not None:
            cached = min(chunk.usage.cached, len(call.tokens))


def failure_of(status: int, body: bytes) -> Failure:
    """Of an HTTP status, or of the code that an error in a stream has."""
    try:
        error = msgspec.json.decode(body, type=_Answer).error
        message = error.message if error is not None else ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = ""
    message = message or f"vLLM answered HTTP {status}"
    if status in REFUSED:
        return Failure(kind=FailureKind.REFUSED, message=message, error="BadRequest")
    return Failure(kind=FailureKind.BUSY if status in FULL else FailureKind.INTERNAL, message=message)


def _logprobs(found: _Logprobs | None, wanted: int) -> list[TokenLogprobs] | None:
    """vLLM tells the chosen token beside the `wanted` most likely ones; here it is one of them only if it belongs there."""
    if found is None:
        return None
    told = []
    for chosen, likely in zip(found.token_logprobs, found.top_logprobs, strict=True):
        top = sorted((likely or {}).items(), key=lambda pair: -pair[1])[: max(0, wanted)]
        pairs = [Logprob(int(name.removeprefix(TOKEN)), value) for name, value in top]
        told.append(TokenLogprobs(chosen=chosen if chosen is not None else 0.0, top=pairs))
    return told


def _blocks(handover: dict[str, Any] | None) -> int:
    told = (handover or {}).get("mooncask")
    blocks = told.get("n_blocks") if isinstance(told, dict) else 0
    return blocks if isinstance(blocks, int) else 0


async def _bounded_body(response: aiohttp.ClientResponse) -> bytes:
    body = b""
    async for data in response.content.iter_any():
        body += data
        if len(body) > LINE_BYTES_MAX:
            raise aiohttp.ClientPayloadError("an answer without an end")
    return body
