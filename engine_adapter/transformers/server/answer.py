"""One answer in the making: a slot, the tokens that were chosen, and where they are told. Not here: threads, the model."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mooncask.client.worker_api import DecodeCall, DecodeDone, Loaded, Logprob, StreamLine, TokenLogprobs, Tokens
from mooncask.engine_adapter.transformers.chunks import Chunk
from mooncask.engine_adapter.transformers.kv_layout import KvBuffer
from mooncask.engine_adapter.transformers.sampling import Logits, choose, log_probabilities

Tell = Callable[[StreamLine], None]
"""Passes a line on to whoever reads the stream; from any thread, without waiting."""


@dataclass(slots=True, eq=False)
class Answer:
    """Belongs to one thread at a time: the loader's, then the computing one, then again a loader's that writes back."""

    call: DecodeCall
    slot: int
    buffer: KvBuffer
    tell: Tell
    cancelled: bool = False
    """Set from any thread; looked at between steps."""
    length: int = 0
    """Tokens whose KV is in the slot."""
    loaded_tokens: int = 0
    load_seconds: float = 0.0
    loaded: list[Loaded] = field(default_factory=list)
    ready_at: float = 0.0
    """When its KV was there, on a clock that stands still with the batch."""
    prompt_seconds: float = 0.0
    """From then to the first token."""
    tail: deque[Chunk] = field(default_factory=deque)
    """What of the prompt is still to be computed."""
    tokens: list[int] = field(default_factory=list)
    """Of the answer, made here."""
    reason: str = ""
    """Why it ended; empty while it goes on."""
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def all_tokens(self) -> list[int]:
        return self.call.tokens + self.tokens

    def take(self, logits: Logits) -> None:
        """Chooses the next token, tells it, and sees whether that was the last one."""
        sampling = self.call.sampling
        position = self.call.first_position + len(self.tokens)
        token = choose(logits, sampling.temperature, sampling.seed, position, sampling.top_p).token
        self.tokens.append(token)
        told = [token_logprobs(logits, token, sampling.logprobs)] if sampling.logprobs >= 0 else None
        self.tell(Tokens(tokens=[token], logprobs=told))
        if token in sampling.stop_tokens:
            self.reason = "stop"
        elif len(self.tokens) >= self.call.max_tokens:
            self.reason = "length"

    def done(self, stored_blocks: int) -> DecodeDone:
        """The last line, when it was not cancelled."""
        return DecodeDone(
            reason=self.reason,
            output_tokens=len(self.tokens),
            cached_tokens=self.loaded_tokens,
            computed_tokens=len(self.call.tokens) - self.loaded_tokens,
            load_seconds=self.load_seconds,
            loaded=self.loaded,
            prompt_seconds=self.prompt_seconds,
            stored_blocks=stored_blocks,
            faults=self.faults,
        )


def token_logprobs(logits: Logits, token: int, top: int) -> TokenLogprobs:
    """The chosen token's logarithm of its probability and those of the `top` most likely tokens, all at temperature 1."""
    logs = log_probabilities(logits)
    best = np.argsort(-logs, kind="stable")[:top]
    return TokenLogprobs(chosen=float(logs[token]), top=[Logprob(int(i), float(logs[i])) for i in best])
