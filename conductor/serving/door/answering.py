"""From a job's token events to pieces of text: stop strings, logprobs, the reason why it ended. One object an answer."""

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from mooncask.client.worker_api import TokenLogprobs
from mooncask.conductor.serving.job import Begun, Dispatcher, Ended, Job, Piece
from mooncask.conductor.serving.text.stopping import StopStrings
from mooncask.conductor.serving.text.texts import Texts


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text that is certain, and the tokens that it came of (their texts are joined, not cut)."""

    text: str
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass(slots=True)
class Answer:
    """`pieces` runs the job; what came of it stands here afterwards."""

    dispatcher: Dispatcher
    texts: Texts
    job: Job
    stops: list[str]
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    reason: str = ""
    """stop or length; empty while it runs, or when it broke."""
    cached_tokens: int = 0
    begun: bool = False

    async def pieces(self) -> AsyncGenerator[Begun | TextPiece]:
        """One Begun, then text as it becomes certain. A stop string ends the job at the worker, too."""
        stop, words = StopStrings(self.stops), self.texts.detokenizer(self.job.model)
        ends = set(self.job.sampling.stop_tokens)
        async with contextlib.aclosing(self.dispatcher.run(self.job)) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, Piece):
                    self.tokens += event.tokens
                    text = stop.step("".join(words.step(token) for token in event.tokens if token not in ends))
                    self.text += text
                    if text or event.logprobs:
                        yield TextPiece(text, event.tokens, event.logprobs or [])
                    if stop.stopped:
                        self.reason = "stop"
                        return
                elif isinstance(event, Ended):
                    self.reason, self.cached_tokens = event.reason, event.cached_tokens
                    if rest := stop.rest():
                        self.text += rest
                        yield TextPiece(rest)
                else:
                    self.begun = True
                    self.cached_tokens = event.matched_tokens
                    yield event

    def usage(self) -> dict[str, Any]:
        return usage([self])


def usage(answers: list[Answer]) -> dict[str, Any]:
    """OpenAI's `usage` of one request: its prompt counts once, its answers together."""
    prompt = len(answers[0].job.tokens)
    made = sum(len(answer.tokens) for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": max(answer.cached_tokens for answer in answers)},
    }
