"""The two shapes of answers, chat and plain text, whole and in chunks. Pure: from values to what is sent as JSON."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from mooncask.client.worker_api import TokenLogprobs
from mooncask.conductor.serving.door.answering import Answer, TextPiece, usage

Piecewise = Callable[[int], str]
"""One token as text."""


class Shape(Protocol):
    """How one endpoint's answers look."""

    def whole(self, answers: list[Answer]) -> dict[str, Any]: ...

    def first(self, number: int) -> dict[str, Any] | None:
        """What a stream begins with, if it does."""
        ...

    def chunk(self, number: int, piece: TextPiece) -> dict[str, Any]: ...

    def last(self, number: int, reason: str) -> dict[str, Any]: ...

    def usage(self, answers: list[Answer]) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class ChatShape:
    """`id` of the request, `created` in seconds since 1970."""

    id: str
    created: int
    model: str
    piece: Piecewise
    logprobs: bool

    def whole(self, answers: list[Answer]) -> dict[str, Any]:
        choices = [
            {
                "index": number,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": None,
                "finish_reason": answer.reason,
            }
            for number, answer in enumerate(answers)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": usage(answers)}

    def empty(self, prompt_tokens: int, cached_tokens: int) -> dict[str, Any]:
        """No answer was made: what its prompt would have been."""
        told = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 0,
            "total_tokens": prompt_tokens,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        }
        return {**self._head("chat.completion"), "choices": [], "usage": told}

    def first(self, number: int) -> dict[str, Any] | None:
        return self._chunk(number, {"role": "assistant", "content": ""}, None, None)

    def chunk(self, number: int, piece: TextPiece) -> dict[str, Any]:
        return self._chunk(number, {"content": piece.text}, self.told(piece), None)

    def last(self, number: int, reason: str) -> dict[str, Any]:
        return self._chunk(number, {}, None, reason)

    def usage(self, answers: list[Answer]) -> dict[str, Any]:
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage(answers)}

    def told(self, piece: TextPiece) -> dict[str, Any] | None:
        """OpenAI's `logprobs` of a chat answer."""
        if not self.logprobs:
            return None
        return {"content": [self._token(*pair) for pair in zip(piece.tokens, piece.logprobs, strict=False)]}

    def _token(self, token: int, told: TokenLogprobs) -> dict[str, Any]:
        top = [{**self._named(one.token), "logprob": one.logprob} for one in told.top]
        return {**self._named(token), "logprob": told.chosen, "top_logprobs": top}

    def _named(self, token: int) -> dict[str, Any]:
        text = self.piece(token)
        return {"token": text, "bytes": list(text.encode())}

    def _chunk(
        self, number: int, delta: dict[str, Any], told: dict[str, Any] | None, reason: str | None
    ) -> dict[str, Any]:
        choice = {"index": number, "delta": delta, "logprobs": told, "finish_reason": reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


@dataclass(frozen=True, slots=True)
class TextShape:
    """As ChatShape, for /v1/completions."""

    id: str
    created: int
    model: str
    piece: Piecewise
    logprobs: bool

    def whole(self, answers: list[Answer]) -> dict[str, Any]:
        choices = [self._choice(number, answer.text, None, answer.reason) for number, answer in enumerate(answers)]
        return {**self._head(), "choices": choices, "usage": usage(answers)}

    def first(self, number: int) -> dict[str, Any] | None:
        return None

    def chunk(self, number: int, piece: TextPiece) -> dict[str, Any]:
        return {**self._head(), "choices": [self._choice(number, piece.text, self.told(piece), None)]}

    def last(self, number: int, reason: str) -> dict[str, Any]:
        return {**self._head(), "choices": [self._choice(number, "", None, reason)]}

    def usage(self, answers: list[Answer]) -> dict[str, Any]:
        return {**self._head(), "choices": [], "usage": usage(answers)}

    def told(self, piece: TextPiece) -> dict[str, Any] | None:
        """OpenAI's `logprobs` of a plain answer."""
        if not self.logprobs:
            return None
        pairs = list(zip(piece.tokens, piece.logprobs, strict=False))
        return {
            "tokens": [self.piece(token) for token, _ in pairs],
            "token_logprobs": [told.chosen for _, told in pairs],
            "top_logprobs": [{self.piece(one.token): one.logprob for one in told.top} for _, told in pairs],
            "text_offset": [],
        }

    def _choice(self, number: int, text: str, told: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
        return {"index": number, "text": text, "logprobs": told, "finish_reason": reason}

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}


def ids_of(answer: Answer) -> dict[str, list[int]]:
    """What a choice tells beside its text for `return_token_ids`: the ids of the prompt, and of the answer with its stop token."""
    return {"prompt_token_ids": answer.job.tokens, "token_ids": answer.tokens}


def with_logprobs(
    whole: dict[str, Any], shape: "ChatShape | TextShape", pieces: list[list[TextPiece]]
) -> dict[str, Any]:
    """A whole answer's logprobs, put together from its pieces."""
    if shape.logprobs:
        for choice, some in zip(whole["choices"], pieces, strict=True):
            tokens = [token for piece in some for token in piece.tokens]
            told = [one for piece in some for one in piece.logprobs]
            choice["logprobs"] = shape.told(TextPiece("", tokens, told))
    return whole
