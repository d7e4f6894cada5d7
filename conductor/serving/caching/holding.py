"""Asks nodes to hold blocks, and to let them go: the daemons' page POST /-/v1/hold. Not here: when (`keeper.py`)."""

import asyncio
from collections.abc import Sequence

import aiohttp
import msgspec

from mooncask.client import control
from mooncask.client.hold import Holding, HoldRequest
from mooncask.client.http import UNIX
from mooncask.conductor.serving.caching.records import Place
from mooncask.conductor.serving.dispatch.node_tokens import REFUSED, NodeTokens, refusal
from mooncask.errors import MooncaskError, NoSuchNamespace, PeerUnavailable, PinLimitExceeded, revive

ANSWER_SECONDS = 5.0


class _Refused(msgspec.Struct):
    error: str = ""
    message: str = ""
    data: dict[str, str | int | float] = {}


class NodeHolds:
    """Keeps a connection to each node. `share`: of a node's NVMe, what may be pinned by all together."""

    def __init__(self, share: float, tokens: NodeTokens | None = None) -> None:
        self._share, self._tokens = share, tokens or NodeTokens()
        self._sessions: dict[str, aiohttp.ClientSession] = {}

    async def hold(self, place: Place, name: str, keys: Sequence[str], seconds: float) -> int:
        """How many of the blocks are not there, and so not held. 0 seconds let go.

        Raises PinLimitExceeded, PeerUnavailable, NoSuchNamespace.
        """
        request = HoldRequest(
            namespace=place.namespace, name=name, keys=tuple(keys), seconds=seconds, share=self._share
        )
        answer = await self._post(place, "hold", msgspec.json.encode(request))
        return len(msgspec.json.decode(answer, type=Holding).missing)

    async def warm(self, place: Place, keys: Sequence[str]) -> None:
        """Blocks that only other nodes have come to this one. Raises PeerUnavailable, NoSuchNamespace."""
        request = control.WhyRequest(namespace=place.namespace, keys=list(keys))
        await self._post(place, "warm", msgspec.json.encode(request))

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    async def _post(self, place: Place, page: str, body: bytes) -> bytes:
        session, base = self._session(place.pages)
        url, headers = f"{base}/-/v1/{page}", self._tokens.headers(place.node, place.pages)
        try:
            async with asyncio.timeout(ANSWER_SECONDS), session.post(url, data=body, headers=headers) as response:
                answer = await response.read()
                if response.status in REFUSED:
                    raise PeerUnavailable(place.node, refusal(place.node, answer))
                if response.status != 200:
                    raise _error(place, answer)
                return answer
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as exc:
            raise PeerUnavailable(place.node, str(exc) or "no answer in time") from exc

    def _session(self, pages: str) -> tuple[aiohttp.ClientSession, str]:
        unix = pages.startswith(UNIX)
        session = self._sessions.get(pages)
        if session is None:
            connector = aiohttp.UnixConnector(pages.removeprefix(UNIX)) if unix else aiohttp.TCPConnector(limit=8)
            session = self._sessions[pages] = aiohttp.ClientSession(connector=connector)
        return session, "http://localhost" if unix else pages.rstrip("/")


def _error(place: Place, answer: bytes) -> MooncaskError:
    told = msgspec.json.decode(answer, type=_Refused)
    error = revive(told.error, told.message, told.data)
    if isinstance(error, PinLimitExceeded | NoSuchNamespace):
        return error
    return PeerUnavailable(place.node, told.message or "refuses")
