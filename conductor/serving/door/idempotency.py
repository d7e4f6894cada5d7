"""Idempotency-Key: the same request sent twice is done once. For answers that are not streamed; bounded, in memory.

A key belongs to its tenant. A failure is not remembered: whoever sends it again has it tried again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

import xxhash

from mooncask.errors import BadField

KEYS_MAX = 10_000
KEY_CHARACTERS_MAX = 256


class Remembered:
    """Answers by (tenant, key). Belongs to one event loop."""

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[str, str], tuple[bytes, asyncio.Future[dict[str, Any]]]] = OrderedDict()

    async def once(
        self, tenant: str, key: str, body: bytes, work: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        """The answer to `body`, worked out by whoever asked first. Raises BadField for a key that had another body."""
        if not key:
            return await work()
        if len(key) > KEY_CHARACTERS_MAX:
            raise BadField("Idempotency-Key", f"at most {KEY_CHARACTERS_MAX} characters")
        digest = xxhash.xxh3_128_digest(body)
        while (known := self._answers.get((tenant, key))) is not None:
            if known[0] != digest:
                raise BadField("Idempotency-Key", "was used with another body; take a new key for a new request")
            try:
                return await asyncio.shield(known[1])
            except asyncio.CancelledError:
                if not known[1].cancelled():
                    raise  # this caller has gone; the first goes on
        return await self._first((tenant, key), digest, work)

    async def _first(
        self, name: tuple[str, str], digest: bytes, work: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[name] = digest, answer
        try:
            answer.set_result(await work())
        finally:
            if not answer.done():  # failed, or its caller went away: the next one tries anew
                del self._answers[name]
                answer.cancel()
        while len(self._answers) > KEYS_MAX:
            self._answers.popitem(last=False)
        return answer.result()
