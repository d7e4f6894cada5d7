"""What is known of one job while it is on its way. Not here: what is done with it (`dispatcher.py`)."""

import time
from dataclasses import dataclass, field

from mooncask.client.hashing import root
from mooncask.client.prompt_keys import prompt_keys
from mooncask.client.worker_api import Hashing
from mooncask.conductor.serving.dispatch.ending import Ending
from mooncask.conductor.serving.dispatch.history import Decision
from mooncask.conductor.serving.job import Ended, Job


@dataclass(slots=True)
class Run:
    """One job on its way."""

    job: Job
    decision: Decision
    hashing: Hashing | None
    until: float
    """On the monotonic clock; what is not ended by then is given up."""
    begun: bool = False
    committed: list[int] = field(default_factory=list)
    failed_workers: set[str] = field(default_factory=set)
    kv_lost: Ending = field(default_factory=Ending)
    """This attempt's prefill has failed before decode had a token."""
    prefilled: bool = False
    """This attempt's prefill is whole."""
    fixed: bool = False
    """Its answer can't be continued by another worker than the one that began it."""
    compute_all: bool = False
    """What a whole prefill stored did not reach decode: the store does not carry it, so decode computes the prompt."""

    @property
    def tokens(self) -> list[int]:
        """Not to be changed: a prompt without an answer is the job's own list, since a copy takes a millisecond."""
        return [*self.job.tokens, *self.committed] if self.committed else self.job.tokens

    @property
    def left_seconds(self) -> float:
        return max(0.001, self.until - time.monotonic())

    def end(self) -> Ended | None:
        """Of an answer that lost its worker when all of its tokens were there; None while some are missing."""
        if self.committed and self.committed[-1] in self.job.sampling.stop_tokens:
            reason = "stop"
        elif len(self.committed) >= self.job.max_tokens:
            reason = "length"
        else:
            return None
        self.decision.output_tokens = len(self.committed)
        return Ended(reason, len(self.committed), self.decision.cached_tokens)

    def keys(self) -> list[bytes]:
        """Of the full blocks of the prompt and what was answered; none without a store."""
        told = self.hashing
        if told is None:
            return []
        fingerprint, salt = bytes.fromhex(told.fingerprint), bytes.fromhex(told.tenant_salt)
        return prompt_keys(
            lambda extra: root(fingerprint, salt + extra, told.hash),
            self.tokens,
            told.block_tokens,
            self.job.cache_salt,
            self.job.public_tokens,
            told.hash,
        )
