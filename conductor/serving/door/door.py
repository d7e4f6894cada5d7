"""The door itself: paths, limits, request ids, draining; and from a body to the job that answers it."""

import asyncio
import contextlib
import dataclasses
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from mooncask.conductor.serving.door.answering import Answer
from mooncask.conductor.serving.door.caching import CacheUse, Caching, Resolved
from mooncask.conductor.serving.door.failures import failure_response, plain_failure
from mooncask.conductor.serving.door.formats import ChatShape, TextShape
from mooncask.conductor.serving.door.gate import Gate, Identity
from mooncask.conductor.serving.door.idempotency import Remembered
from mooncask.conductor.serving.door.requests import (
    Asked,
    ChatAsked,
    TextAsked,
    TokenizeAsked,
    plain_messages,
    read_body,
)
from mooncask.conductor.serving.door.serving import Call
from mooncask.conductor.serving.job import Dispatcher, Job
from mooncask.conductor.serving.text.model_text import Rendered
from mooncask.conductor.serving.text.texts import Texts
from mooncask.errors import BadField, BadRequest, ContextTooLong, MooncaskError, NoSuchModel, NoWorkers, Overloaded

log = logging.getLogger(__name__)

REQUEST_ID = web.RequestKey("request_id", str)
RECEIVED = web.RequestKey("received", float)
"""When the body had come, on the monotonic clock."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt as it is run: rendered, with the messages that it came of."""

    rendered: Rendered
    messages: list[dict[str, Any]]
    cache: CacheUse | None = None


class Door:
    """Handlers for clients. `body_bytes_max`: a longer body is refused unread. `client_seconds`: a client that sends its body,
    or takes its answer, more slowly than that is cut off. `requests_max`: more at a time are rejected."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        texts: Texts,
        gate: Gate,
        body_bytes_max: int,
        client_seconds: float = 60.0,
        requests_max: int = 2048,
        caching: Caching | None = None,
    ) -> None:
        self._caching = caching
        self._dispatcher, self._texts, self._gate = dispatcher, texts, gate
        self._body_bytes_max, self._client_seconds, self._requests_max = body_bytes_max, client_seconds, requests_max
        self._remembered = Remembered()
        self._running: set[asyncio.Task[Any]] = set()
        self.draining = False

    def application(self) -> web.Application:
        app = web.Application(client_max_size=self._body_bytes_max, middlewares=[self._answered])
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._text)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{model:.+}", self._model)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        if self._caching is not None:
            self._caching.add_to(app)
        return app

    async def drain(self, seconds: float) -> None:
        """Takes no new requests, and waits for those that run."""
        self.draining = True
        if self._running:
            log.info("draining: %d requests are under way", len(self._running))
            await asyncio.wait(set(self._running), timeout=seconds)

    # --- around every request ---

    @web.middleware
    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("x-request-id", "")
        request_id = given if given.isprintable() and 0 < len(given) <= 128 else f"req-{secrets.token_hex(12)}"
        request[REQUEST_ID] = request_id
        try:
            response = await handler(request)
        except web.HTTPRequestEntityTooLarge:
            text = f"the body is longer than {self._body_bytes_max} bytes"
            return plain_failure(413, text, "request_too_large", request_id)
        except web.HTTPMethodNotAllowed as exc:
            allowed = ", ".join(sorted(exc.allowed_methods))
            return plain_failure(405, f"{request.path} takes {allowed}", "method_not_allowed", request_id)
        except web.HTTPNotFound:
            return plain_failure(404, f"there is no {request.path} here", "not_found", request_id)
        except MooncaskError as exc:
            return failure_response(self._told(exc), request_id)
        except ConnectionError:
            return plain_failure(400, "the connection broke", "connection_broken", request_id)  # nobody reads it
        except Exception as exc:  # the top of a request: logged, said in OpenAI's form
            log.exception("request %s failed by a fault of this Conductor", request_id)
            return failure_response(exc, request_id)
        if not response.prepared:
            response.headers["x-request-id"] = request_id
        return response

    def _told(self, error: MooncaskError) -> MooncaskError:
        """A model that is configured and has no workers at the moment is no unknown one: clients shall try again."""
        if isinstance(error, NoSuchModel) and error.model in self._texts.models():
            return NoWorkers(f"no worker serves model {error.model} now")
        return error

    # --- chat and text ---

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        identity = self._begin(request)
        with _counted(self._running):
            return await self._chat_of(request, identity)

    async def _text(self, request: web.Request) -> web.StreamResponse:
        identity = self._begin(request)
        with _counted(self._running):
            return await self._text_of(request, identity)

    async def _chat_of(self, request: web.Request, identity: Identity) -> web.StreamResponse:
        body = await self._body(request)
        asked = read_body(body, ChatAsked)
        if (asked.response_format or {}).get("type", "text") != "text":
            raise BadField("response_format", "only text is served here")
        resolved = await self._resolved(identity, self._known(asked.model), request, asked)
        messages = resolved.messages
        rendered = await self._texts.prompt(asked.model, messages, resolved.tools)
        shape = ChatShape(
            _id("chatcmpl"),
            int(time.time()),
            asked.model,
            lambda token: self._texts.piece(asked.model, token),
            asked.logprobs_wanted >= 0,
        )
        use = await self._caching.use(identity, resolved, rendered.tokens) if self._caching is not None else None
        if use is not None and resolved.dry_run:
            return await self._dry_run(use, shape, rendered)
        prompt = _Prompt(rendered, messages, use)
        return await self._serve(request, identity, asked, prompt, asked.logprobs_wanted, shape, body)

    async def _text_of(self, request: web.Request, identity: Identity) -> web.StreamResponse:
        body = await self._body(request)
        asked = read_body(body, TextAsked)
        given = asked.one_prompt()
        model = self._known(asked.model)
        tokens = await self._texts.tokens(model, given) if isinstance(given, str) else given
        logprobs = -1 if asked.logprobs is None else asked.logprobs
        shape = TextShape(
            _id("cmpl"),
            int(time.time()),
            asked.model,
            lambda token: self._texts.piece(asked.model, token),
            logprobs >= 0,
        )
        prompt = _Prompt(Rendered("", tokens), [])
        return await self._serve(request, identity, asked, prompt, logprobs, shape, body)

    async def _serve(
        self,
        request: web.Request,
        identity: Identity,
        asked: Asked,
        prompt: _Prompt,
        logprobs: int,
        shape: ChatShape | TextShape,
        body: bytes,
    ) -> web.StreamResponse:
        answers = self._answers(request, identity, asked, prompt.rendered.tokens, logprobs, shape.id)
        headers = {"x-request-id": request[REQUEST_ID]}
        call = Call(
            self._gate,
            identity,
            answers,
            shape,
            headers,
            caching=self._caching,
            cache=prompt.cache,
            token_ids=bool(asked.return_token_ids),
        )
        call.client_seconds = self._client_seconds
        if asked.streamed:
            usage = asked.stream_options is not None and asked.stream_options.include_usage
            response: web.StreamResponse = await call.stream(request, usage)
        else:
            key = request.headers.get("Idempotency-Key", "")
            whole = await self._remembered.once(identity.tenant, key, body, call.whole)
            response = web.json_response(whole, headers=call.headers)
        self._remember(asked.model, prompt, answers)
        return response

    async def _resolved(self, identity: Identity, model: str, request: web.Request, asked: ChatAsked) -> Resolved:
        """With a named cache's messages put in. Raises BadField, NoSuchCache."""
        messages = plain_messages(asked.messages)
        if self._caching is not None:
            return await self._caching.resolve(identity, model, request.headers, messages, asked.tools)
        if any(message["role"] == "cache" for message in messages):
            raise BadField("messages", "caches are switched off here: send the messages themselves")
        return Resolved(messages, asked.tools)

    async def _dry_run(self, use: CacheUse, shape: ChatShape, rendered: Rendered) -> web.StreamResponse:
        """Says what the cache would save; nothing is computed, nothing billed, no time to live set."""
        assert self._caching is not None
        headers = await self._caching.used(dataclasses.replace(use, reset_ttl=None), use.tokens)
        return web.json_response(shape.empty(len(rendered.tokens), use.tokens), headers=headers)

    def _answers(
        self, request: web.Request, identity: Identity, asked: Asked, tokens: list[int], logprobs: int, name: str
    ) -> list[Answer]:
        """The jobs of one request. Raises ContextTooLong, BadField."""
        limit = self._dispatcher.positions_max(asked.model)
        room = limit - len(tokens)
        answer_max = asked.answer_max or (16 if isinstance(asked, TextAsked) else room)
        if room < 1 or answer_max > room:
            raise ContextTooLong(len(tokens), asked.answer_max or 0, limit)
        public = self._gate.public_tokens(identity, asked.model, tokens)
        stop_tokens, received = self._texts.stop_tokens(asked.model), request[RECEIVED]
        jobs = [
            Job(
                id=f"{name}-{number}" if asked.answers > 1 else name,
                model=asked.model,
                tokens=tokens,
                max_tokens=answer_max,
                sampling=asked.sampling(stop_tokens, logprobs, number),
                tenant=identity.tenant,
                service_class=identity.service_class,
                priority=identity.priority,
                cache_salt=identity.cache_salt,
                public_tokens=public,
                received_seconds=received,
            )
            for number in range(asked.answers)
        ]
        return [Answer(self._dispatcher, self._texts, job, asked.stops) for job in jobs]

    def _remember(self, model: str, prompt: _Prompt, answers: list[Answer]) -> None:
        """A conversation's next turn begins with these very tokens."""
        answer = answers[0]
        if not prompt.messages or answer.reason != "stop" or not answer.tokens:
            return
        last = answer.tokens[-1]
        if last in answer.job.sampling.stop_tokens:
            text = prompt.rendered.text + answer.text + self._texts.piece(model, last)
            self._texts.remember(model, prompt.messages, text, [*answer.job.tokens, *answer.tokens])

    def _begin(self, request: web.Request) -> Identity:
        """Raises NoWorkers while draining, AccessDenied, Overloaded."""
        identity = self._gate.identify(request.headers)
        if self.draining:
            raise NoWorkers("this Conductor is being stopped")
        if len(self._running) >= self._requests_max:
            raise Overloaded(f"{self._requests_max} requests are being served", 1.0)
        return identity

    async def _body(self, request: web.Request) -> bytes:
        """Raises BadRequest when it does not come in time."""
        try:
            async with asyncio.timeout(self._client_seconds):
                body = await request.read()
        except TimeoutError:
            raise BadRequest(f"the body did not come within {self._client_seconds:.0f} s") from None
        request[RECEIVED] = time.monotonic()
        return body

    def _known(self, model: str) -> str:
        """Raises NoSuchModel, also for a model that has workers and no tokeniser."""
        known = sorted(set(self._dispatcher.models()) & set(self._texts.models()))
        if model not in known:
            raise NoSuchModel(model, ", ".join(known))
        return model

    # --- the small ones ---

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self._gate.identify(request.headers)
        known = sorted(set(self._dispatcher.models()) & set(self._texts.models()))
        return web.json_response({"object": "list", "data": [self._described(model) for model in known]})

    async def _model(self, request: web.Request) -> web.StreamResponse:
        self._gate.identify(request.headers)
        return web.json_response(self._described(self._known(request.match_info["model"])))

    def _described(self, model: str) -> dict[str, Any]:
        limit = self._dispatcher.positions_max(model)
        return {"id": model, "object": "model", "created": 0, "owned_by": "mooncask", "max_model_len": limit}

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        self._gate.identify(request.headers)
        asked = read_body(await self._body(request), TokenizeAsked)
        model = self._known(asked.model)
        if (asked.prompt is None) == (asked.messages is None):
            raise BadField("prompt", "give either prompt or messages")
        if asked.messages is not None:
            messages = plain_messages(asked.messages)
            tokens = (await self._texts.prompt(model, messages, asked.tools, asked.add_generation_prompt)).tokens
        else:
            tokens = await self._texts.tokens(model, asked.prompt or "")
        limit = self._dispatcher.positions_max(model)
        return web.json_response({"count": len(tokens), "max_model_len": limit, "tokens": tokens})

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def _ready(self, request: web.Request) -> web.StreamResponse:
        ready = not self.draining and bool(self._dispatcher.models())
        return web.Response(text="ready\n" if ready else "no model is served\n", status=200 if ready else 503)


def _id(kind: str) -> str:
    """Of the answer and of the job: its own, for clients may send one request id twice."""
    return f"{kind}-{secrets.token_hex(12)}"


@contextlib.contextmanager
def _counted(running: set[asyncio.Task[Any]]) -> Iterator[None]:
    """This request is one of those that a drain waits for."""
    task = asyncio.current_task()
    assert task is not None
    running.add(task)
    try:
        yield
    finally:
        running.discard(task)
