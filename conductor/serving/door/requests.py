"""What clients may ask, checked: OpenAI's request bodies as far as they are served here. Unknown fields are ignored, as
clients of many kinds send them; what is known and can't be done is refused by name. Pure.
"""

import secrets
from typing import Annotated, Any, TypeVar

import msgspec

from mooncask.client.worker_api import Sampling
from mooncask.errors import BadField, BadRequest

STOPS_MAX = 4
STOP_CHARACTERS_MAX = 256
ANSWERS_MAX = 8

Positive = Annotated[int, msgspec.Meta(ge=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What chat and plain completions have in common."""

    model: str
    max_tokens: Positive | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=ANSWERS_MAX)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    return_token_ids: bool | None = None
    """As in vLLM: also the ids of prompt and answer. A stream tells them all with its last chunk."""

    @property
    def streamed(self) -> bool:
        return bool(self.stream)

    @property
    def answers(self) -> int:
        return self.n or 1

    @property
    def stops(self) -> list[str]:
        """Raises BadField."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > STOPS_MAX or any(not 0 < len(stop) <= STOP_CHARACTERS_MAX for stop in stops):
            raise BadField("stop", "at most 4 strings of 1 to 256 characters")
        return stops

    @property
    def answer_max(self) -> int | None:
        return self.max_tokens

    def sampling(self, stop_tokens: list[int], logprobs: int, number: int) -> Sampling:
        """Of answer `number` of n; without a seed each is drawn from one of its own. Raises BadField."""
        for name in ("presence_penalty", "frequency_penalty"):
            if getattr(self, name):
                raise BadField(name, "is not supported here: leave it out, or give 0")
        if self.logit_bias:
            raise BadField("logit_bias", "is not supported here: leave it out")
        seed = secrets.randbits(62) if self.seed is None else (self.seed + number) % (1 << 63)
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=seed,
            seeded=self.seed is not None or self.answers > 1,
            logprobs=logprobs,
            stop_tokens=stop_tokens,
        )


class ChatAsked(Asked, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    response_format: dict[str, Any] | None = None

    @property
    def answer_max(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def logprobs_wanted(self) -> int:
        """As in `Sampling.logprobs`. Raises BadField."""
        if self.top_logprobs and not self.logprobs:
            raise BadField("top_logprobs", "needs logprobs = true")
        return (self.top_logprobs or 0) if self.logprobs else -1


class TextAsked(Asked, frozen=True, kw_only=True):
    """POST /v1/completions. `prompt`: text, or token ids; several prompts in one request are not served."""

    prompt: str | list[int | str | list[int]]
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    def one_prompt(self) -> str | list[int]:
        """Raises BadField."""
        if self.echo or self.suffix or (self.best_of or 1) > 1:
            raise BadField("echo, suffix, best_of", "are not supported here: leave them out")
        prompt: Any = self.prompt
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if not prompt:
            raise BadField("prompt", "must not be empty")
        if isinstance(prompt, list) and not all(isinstance(token, int) and 0 <= token < 1 << 32 for token in prompt):
            raise BadField(
                "prompt", "must be one text, or the token ids of one; send several requests for several prompts"
            )
        return prompt  # type: ignore[no-any-return]  # one of the two by now


class TokenizeAsked(msgspec.Struct, frozen=True):
    """POST /tokenize: `prompt`, or `messages`."""

    model: str
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    tools: list[dict[str, Any]] | None = None


Body = TypeVar("Body", bound=msgspec.Struct)

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "cache"})


def read_body(data: bytes, kind: type[Body]) -> Body:
    """Raises BadRequest that says which field is wrong, and how."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as exc:
        text, _, where = str(exc).partition(" - at ")
        raise BadField(where.strip("`").removeprefix("$").removeprefix(".") or "the body", text) from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadRequest(f"the body is no JSON that is read here: {exc}") from exc


def plain_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with their text as one string each. Raises BadField for what is no text, or has no role."""
    return [_plain(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _plain(message: dict[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise BadField(f"{where}.role", f"is {role!r}; one of {', '.join(sorted(ROLES))}")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_text(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    if content is None and message.get("tool_calls"):
        content = ""
    if not isinstance(content, str):
        raise BadField(f"{where}.content", "must be text, or a list of parts of type text")
    return {**message, "role": role, "content": content}


def _text(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        raise BadField(where, f"is of type {kind!r}; only text is served here")
    return str(part["text"])
