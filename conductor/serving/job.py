"""One request between the door, which knows text and clients, and the dispatcher, which knows token ids and workers.

Not here: how either does its part (`door/`, `dispatch/`).
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from mooncask.client.worker_api import Sampling, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt in token ids, and what is wanted of the answer. `priority` 0 to 255: the higher, the longer it is admitted."""

    id: str
    model: str
    tokens: list[int]
    max_tokens: int
    sampling: Sampling
    tenant: str = ""
    service_class: str = ""
    priority: int = 128
    cache_salt: str = ""
    public_tokens: int = 0
    """The first so many tokens belong to a prompt that the operator has declared public: hashed without the salt."""
    received_seconds: float = 0.0
    """When the body had been received, on the monotonic clock: TTFT counts from there."""
    deadline_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Begun:
    """Decode has admitted the request: from now on it is not rejected any more."""

    prefill_worker: str
    """Empty where nothing was to be prefilled."""
    decode_worker: str
    matched_tokens: int
    """Of the prompt, found in the pool when the request was placed."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The next tokens of the answer; never one twice, whatever fails behind it."""

    tokens: list[int]
    logprobs: list[TokenLogprobs] | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is whole. `reason`: stop or length. `cached_tokens` of the prompt were loaded and not computed."""

    reason: str
    output_tokens: int
    cached_tokens: int
    faults: dict[str, int] = field(default_factory=dict)


Event = Begun | Piece | Ended


class Dispatcher(Protocol):
    """Runs jobs on workers. Closing the iterator cancels the job on every worker that has a part of it."""

    def run(self, job: Job) -> AsyncIterator[Event]:
        """One Begun, Pieces, one Ended. Raises Overloaded, NoSuchModel, NoWorkers and ContextTooLong before Begun; AnswerBroken
        after it."""
        ...

    def models(self) -> list[str]:
        """Names that requests may use, each served by at least one prefill and one decode worker."""
        ...

    def positions_max(self, model: str) -> int:
        """Tokens of prompt and answer together. Raises NoSuchModel."""
        ...
