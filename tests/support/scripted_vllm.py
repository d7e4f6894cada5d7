"""A vLLM API server over real HTTP that has no model: what it says was recorded from vLLM 0.32 with Mooncask's connector.

Its tokens are those of `scripted_worker.right_answer`, so that a continuation that lost or repeated one goes on wrongly.
"""

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from scripted_answers import right_answer

from mooncask.client.hashing import namespace_name

FAMILY = {"engine": "vllm", "block_tokens": "4"}
FINGERPRINT = bytes(range(16))
SALT = b"tenant salt 16 B"
HASHING = {
    "namespace": namespace_name(FINGERPRINT),
    "fingerprint": FINGERPRINT.hex(),
    "tenant_salt": SALT.hex(),
    "hash": "sha256",
    "block_tokens": 4,
    "block_bytes": 4096,
}
BLOCK_TOKENS = 4
SLOTS = 4

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
vllm:num_requests_waiting_by_reason{{engine="0",model_name="m",reason="capacity"}} 7.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.25
vllm:inter_token_latency_seconds_bucket{{engine="0",le="0.01",model_name="m"}} 3.0
vllm:inter_token_latency_seconds_count{{engine="0",model_name="m"}} {pauses}
vllm:inter_token_latency_seconds_sum{{engine="0",model_name="m"}} {pause_seconds}
vllm:cache_config_info{{block_size="32",engine="0",kv_cache_size_tokens="23296",num_gpu_blocks="728",sliding_window="None"}} 1.0
process_start_time_seconds {started}
"""


@dataclass
class ScriptedVllm:
    """`break_after`: the next answer's connection ends behind so many tokens. `asked`: bodies of completions, in order."""

    name: str
    api_key: str = ""
    described: bool = True
    healthy: bool = True
    max_model_len: int = 4096
    break_after: int | None = None
    error: dict[str, Any] | None = None
    """Of the next answer: as vLLM says it in a stream that has begun."""
    status: int = 200
    """Of the next completions."""
    pauses: float = 0.0
    pause_seconds: float = 0.0
    started: str = field(default_factory=lambda: f"1.79603{secrets.randbelow(10**6):06}e+09")
    family: dict[str, str] = field(default_factory=lambda: dict(FAMILY))
    asked: list[dict[str, Any]] = field(default_factory=list)
    go: asyncio.Event | None = None
    """Prefills end when it is set."""
    answers: asyncio.Event | None = None
    """Answers begin when it is set."""
    descriptions: int = 0
    """Times that it has told how its keys are made."""
    running: int = 0
    address: str = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["ScriptedVllm"]:
        app = web.Application(client_max_size=16 << 20)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/completions", self._completions)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    @property
    def decodes(self) -> list[dict[str, Any]]:
        return [body for body in self.asked if body.get("stream")]

    @property
    def prefills(self) -> list[dict[str, Any]]:
        return [body for body in self.asked if (body.get("kv_transfer_params") or {}).get("do_remote_decode")]

    # --- handlers ---

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": "m", "object": "model", "owned_by": "vllm", "max_model_len": self.max_model_len}
        return web.json_response({"object": "list", "data": [model]})

    async def _metrics(self, request: web.Request) -> web.Response:
        values = {"running": float(self.running), "waiting": 0.0, "started": self.started}
        values |= {"pauses": self.pauses, "pause_seconds": self.pause_seconds}
        return web.Response(text=METRICS.format(**values))

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self.api_key and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if body["model"] != "m":
            return _error(404, f"The model `{body['model']}` does not exist. Valid aliases: m.", "NotFoundError")
        params = body.get("kv_transfer_params") or {}
        if (params.get("mooncask") or {}).get("describe"):
            self.descriptions += 1
            told = {"mooncask": {"hashing": {**HASHING, "family": self.family}}} if self.described else None
            return web.json_response(_whole([11], body, told))
        self.asked.append(body)
        if self.status != 200:
            return _error(self.status, "as scripted", "BadRequestError")
        self.running += 1
        try:
            if body.get("stream"):
                return await self._stream(request, body)
            assert body["max_tokens"] == 1
            if self.go is not None:
                await self.go.wait()
                if self.status != 200:
                    return _error(self.status, "as scripted", "BadRequestError")
            blocks = len(body["prompt"]) // BLOCK_TOKENS
            handover = {"family": FINGERPRINT.hex(), "keys_digest": "00" * 16, "n_blocks": blocks, "node": "n1"}
            told = {"do_remote_prefill": True, "do_remote_decode": False, "remote_prefill_cached_tokens": 0}
            told |= {"mooncask": {**handover, "handover_id": secrets.token_hex(8)}}
            return web.json_response(_whole(right_answer(body["prompt"], 1), body, told))
        finally:
            self.running -= 1

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if self.answers is not None:
            await self.answers.wait()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        error, self.error = self.error, None
        if error is not None:
            await response.write(_event({"error": error}) + b"data: [DONE]\n\n")
            return response
        break_after, self.break_after = self.break_after, None
        prompt, made = list(body["prompt"]), right_answer(body["prompt"], body["max_tokens"])
        for number, token in enumerate(made):
            if number == break_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            stopped = token in body["stop_token_ids"]
            last = stopped or number == len(made) - 1
            choice = {
                "index": 0,
                "text": "" if stopped else " w",
                "logprobs": _logprobs(token, body) if "logprobs" in body else None,
                "finish_reason": ("stop" if stopped else "length") if last else None,
                "stop_reason": token if stopped else None,
                "prompt_token_ids": prompt if number == 0 else None,
                "token_ids": [token],
            }
            await response.write(_event(_head() | {"choices": [choice]}))
            if last:
                break
        usage = _usage(len(prompt), number + 1)
        await response.write(_event(_head() | {"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response


def _head() -> dict[str, Any]:
    return {"id": f"cmpl-{secrets.token_hex(8)}", "object": "text_completion", "created": 1796032019, "model": "m"}


def _usage(prompt: int, made: int) -> dict[str, Any]:
    cached = {"cached_tokens": prompt // BLOCK_TOKENS * BLOCK_TOKENS}
    return {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made} | {
        "prompt_tokens_details": cached
    }


def _logprobs(token: int, body: dict[str, Any]) -> dict[str, Any]:
    """The chosen token beside the most likely ones, of which it is none here."""
    assert body["return_tokens_as_token_ids"]
    likely = {f"token_id:{token + 1000 + i}": -1.0 - i for i in range(body["logprobs"])}
    return {
        "text_offset": [0],
        "token_logprobs": [-4.5],
        "tokens": [f"token_id:{token}"],
        "top_logprobs": [{f"token_id:{token}": -4.5, **likely}],
    }


def _whole(tokens: list[int], body: dict[str, Any], params: dict[str, Any] | None) -> dict[str, Any]:
    choice = {"index": 0, "text": "'s", "logprobs": None, "finish_reason": "length", "token_ids": None}
    usage = _usage(len(body["prompt"]), len(tokens))
    return _head() | {"choices": [choice], "usage": usage, "kv_transfer_params": params}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _error(status: int, message: str, kind: str) -> web.Response:
    told = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": told}, status=status)
