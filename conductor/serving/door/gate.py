"""Who asks, and what they may: the seam to `tenants/` and `billing/`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Identity:
    """`cache_salt` keeps a tenant's KV apart from that of others; empty shares it with all who have none."""

    tenant: str = "default"
    service_class: str = ""
    priority: int = 128
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class CallUsage:
    """One answer, however it ended: `outcome` is stop, length, cancelled, failed or rejected. Times in seconds.

    Of n answers to one prompt the first one's usage carries the prompt.
    """

    request: str
    tenant: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    outcome: str
    at: float
    seconds: float
    cache_id: str = ""
    """The cache that the request named, and of the prompt what that covers while it is ready."""
    cache_tokens: int = 0
    answer_tokens_max: int = 0
    """For so many it was admitted."""


class Gate(Protocol):
    """Asked once a request, in this order."""

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """Raises AccessDenied, BadField."""
        ...

    def public_tokens(self, identity: Identity, model: str, tokens: list[int]) -> int:
        """How many tokens the prompt has in common with what the operator has declared public, in whole blocks."""
        ...

    async def admit(self, identity: Identity, tokens: int) -> None:
        """Before the request is placed: `tokens` of prompt and answers at most. Raises TokenQuotaExceeded."""
        ...

    def record(self, identity: Identity, usage: CallUsage) -> None:
        """When it has ended; once an answer of a request that was admitted."""
        ...
