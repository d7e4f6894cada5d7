"""Who asks, and what they may: the seam to `tenants/`. Here also the gate of a Conductor without keys."""

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
    """One request, however it ended: `outcome` is stop, length, cancelled, failed or rejected. Times in seconds."""

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


class Gate(Protocol):
    """Asked once a request, in this order."""

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """Raises AccessDenied, BadField."""
        ...

    def public_tokens(self, identity: Identity, model: str, tokens: list[int]) -> int:
        """How many tokens the prompt has in common with what the operator has declared public, in whole blocks."""
        ...

    def admit(self, identity: Identity, tokens: int) -> None:
        """Before the request is placed: `tokens` of prompt and answer at most. Raises TokenQuotaExceeded."""
        ...

    def record(self, identity: Identity, usage: CallUsage) -> None:
        """When it has ended; once a request that was admitted."""
        ...


@dataclass(slots=True)
class OpenGate:
    """Everybody is the tenant "default": for loopback, where whoever reaches the port may use it."""

    classes: tuple[str, ...] = ()

    def identify(self, headers: Mapping[str, str]) -> Identity:
        wanted = headers.get("X-Mooncask-Class", "")
        return Identity(service_class=wanted if wanted in self.classes else "")

    def public_tokens(self, identity: Identity, model: str, tokens: list[int]) -> int:
        return 0

    def admit(self, identity: Identity, tokens: int) -> None:
        pass

    def record(self, identity: Identity, usage: CallUsage) -> None:
        pass
