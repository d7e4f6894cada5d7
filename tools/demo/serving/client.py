"""A client of the Conductor for the load: one streamed chat completion, timed. Not here: which requests are sent when."""

import itertools
import time
from collections.abc import AsyncIterator

import aiohttp
import msgspec

from mooncask.conductor.scheduling.facts import Reason
from mooncask.tools.demo.serving.reply import Outcome, Reply

MODEL = "smollm2"
SECONDS_MAX = 600.0
LATE = ("place to decode", Reason.TBT_AFTER_PREFILL.value)
"""In the text of a rejection that came when the prefill had begun; every other one came before anything was computed."""

Messages = list[dict[str, str]]


class _Delta(msgspec.Struct):
    content: str = ""


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None
    prompt_token_ids: list[int] = []
    token_ids: list[int] = []


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details = msgspec.field(default_factory=_Details)


class _Error(msgspec.Struct):
    message: str = ""


class _Event(msgspec.Struct):
    id: str = ""
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


class ChatClient:
    """Asks for greedy answers of `answer_tokens` at most. `began`: of the run, on the monotonic clock."""

    def __init__(self, session: aiohttp.ClientSession, url: str, answer_tokens: int, began: float) -> None:
        self._session, self._url, self._answer_tokens, self._began = session, url, answer_tokens, began

    async def ask(self, chat: str, turn: int, messages: Messages) -> Reply:
        """Raises nothing: what went wrong is the reply's outcome."""
        sent = time.monotonic()
        reply = _Reading(chat, turn, sent - self._began, sent)
        try:
            async with self._session.post(f"{self._url}/v1/chat/completions", json=self._body(messages)) as response:
                if response.status != 200:
                    return reply.refused(response.status, await response.read())
                async for event in _events(response.content):
                    reply.take(event)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as exc:
            return reply.ended(Outcome.FAILED, f"{type(exc).__name__}: {exc}")
        return reply.whole()

    def _body(self, messages: Messages) -> dict[str, object]:
        return {
            "model": MODEL,
            "messages": messages,
            "temperature": 0,
            "max_tokens": self._answer_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }


class _Reading:
    """A reply while it comes."""

    def __init__(self, chat: str, turn: int, at: float, sent: float) -> None:
        self._chat, self._turn, self._at, self._sent = chat, turn, at, sent
        self._times: list[float] = []
        self._text: list[str] = []
        self._ids: list[int] = []
        self._prompt: list[int] = []
        self._cached = 0
        self._id = self._finish = self._error = ""

    def take(self, event: _Event) -> None:
        if event.error is not None:
            self._error = event.error.message
        self._id = event.id or self._id
        if event.usage is not None:
            self._cached = event.usage.prompt_tokens_details.cached_tokens
        for choice in event.choices:
            if choice.delta.content:
                self._times.append(time.monotonic())
                self._text.append(choice.delta.content)
            self._finish = choice.finish_reason or self._finish
            self._prompt, self._ids = choice.prompt_token_ids or self._prompt, choice.token_ids or self._ids

    def whole(self) -> Reply:
        if self._error or not self._finish:
            return self.ended(Outcome.FAILED, self._error or "the stream ended without an end")
        return self.ended(Outcome.ANSWERED, "")

    def refused(self, status: int, body: bytes) -> Reply:
        error = msgspec.json.decode(body, type=_Event).error
        message = error.message if error is not None else f"status {status}"
        if status != 429:
            return self.ended(Outcome.FAILED, message)
        return self.ended(
            Outcome.REJECTED_LATE if any(text in message for text in LATE) else Outcome.REJECTED_EARLY, message
        )

    def ended(self, outcome: Outcome, message: str) -> Reply:
        now, times = time.monotonic(), self._times
        return Reply(
            chat=self._chat,
            turn=self._turn,
            sent=self._at,
            outcome=outcome,
            message=message,
            ttft=(times[0] if times else now) - self._sent,
            gaps=tuple(after - before for before, after in itertools.pairwise(times)),
            seconds=now - self._sent,
            text="".join(self._text),
            prompt_ids=tuple(self._prompt),
            answer_ids=tuple(self._ids),
            cached_tokens=self._cached,
            request_id=self._id,
        )


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[_Event]:
    decoder = msgspec.json.Decoder(_Event)
    async for line in content:
        if line.startswith(b"data: {"):
            yield decoder.decode(line.removeprefix(b"data: "))


def session() -> aiohttp.ClientSession:
    """For one run."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=SECONDS_MAX), connector=aiohttp.TCPConnector(limit=0), read_bufsize=1 << 20
    )
