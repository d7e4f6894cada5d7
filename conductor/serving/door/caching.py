"""What the door asks of context caching: the seam to `caching/`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web

from mooncask.conductor.serving.door.gate import Identity


@dataclass(frozen=True, slots=True)
class Resolved:
    """A chat's messages and tools with the cache that it names put in. `cache`: empty where it names none."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    cache: str = ""
    dry_run: bool = False
    reset_ttl: int | None = None


@dataclass(frozen=True, slots=True)
class CacheUse:
    """One request's use of one cache. `tokens`: what it covers of this prompt, 0 while it is not ready or does not fit."""

    identity: Identity
    cache: str
    tokens: int
    reset_ttl: int | None = None


class Caching(Protocol):
    """Asked once a chat, in this order."""

    def add_to(self, app: web.Application) -> None:
        """The paths under /v1/caching."""
        ...

    async def resolve(
        self,
        identity: Identity,
        model: str,
        headers: Mapping[str, str],
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
    ) -> Resolved:
        """Before the prompt is made. Raises NoSuchCache, BadField."""
        ...

    async def use(self, identity: Identity, resolved: Resolved, tokens: list[int]) -> CacheUse | None:
        """When the prompt is made; None where no cache is named."""
        ...

    async def used(self, use: CacheUse, cached_tokens: int) -> dict[str, str]:
        """When the request has its place: sets the time to live anew if that was asked; returns headers of the answer."""
        ...
