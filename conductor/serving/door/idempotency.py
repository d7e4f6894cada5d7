"""Idempotency-Key: the same request sent twice is done once. For answers that are not streamed; bounded, in memory.

A key belongs to its tenant. A failure is not remembered: whoever sends it again has it tried again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import xxhash

from mooncask.errors import BadField

KEYS_MAX = 10_000
BYTES_MAX = 64 << 20
KEY_CHARACTERS_MAX = 256


@dataclass(slots=True, eq=False)
class _Known:
    """One request that runs, or its answer."""

    digest: bytes
    answer: asyncio.Future[dict[str, Any]]
    size_bytes: int = 0


class Remembered:
    """Answers by (tenant, key), of `bytes_max` together. Belongs to one event loop."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self._bytes_max, self._bytes = bytes_max, 0

    async def once(
        self, tenant: str, key: str, body: bytes, work: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        """The answer to `body`, worked out by whoever asked first. Raises BadField for a key that had another body."""
        if not key:
            return await work()
        if len(key) > KEY_CHARACTERS_MAX:
            raise BadField("Idempotency-Key", f"at most {KEY_CHARACTERS_MAX} characters")
        digest = xxhash.xxh3_128_digest(body)
        while (known := self._known.get((tenant, key))) is not None:
            if known.digest != digest:
                raise BadField("Idempotency-Key", "was used with another body; take a new key for a new request")
            await asyncio.wait([known.answer])  # a wait that is cancelled leaves it alone
            if not known.answer.cancelled():
                return known.answer.result()
        return await self._first((tenant, key), digest, work)

    async def _first(
        self, name: tuple[str, str], digest: bytes, work: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        known = self._known[name] = _Known(digest, asyncio.get_running_loop().create_future())
        try:
            answer = await work()
        except BaseException:  # failed, or its caller went away: the next one tries anew
            del self._known[name]
            known.answer.cancel()
            raise
        known.answer.set_result(answer)
        known.size_bytes = len(msgspec.json.encode(answer))
        self._bytes += known.size_bytes
        self._forget_oldest()
        return answer

    def _forget_oldest(self) -> None:
        """Of those that are answered: what runs is known as long as it runs."""
        for name, known in list(self._known.items()):
            if self._bytes <= self._bytes_max and len(self._known) <= KEYS_MAX:
                return
            if known.answer.done():
                self._bytes -= known.size_bytes
                del self._known[name]
