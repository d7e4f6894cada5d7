"""One queue pair to one peer, proved: made by asking the peer over the link, and destroyed before another takes its place."""

import logging
import time
from collections.abc import Sequence

from mooncask.daemon.transport.rdma.device import OpenDevice
from mooncask.daemon.transport.rdma.engine import Pair, PairLost
from mooncask.daemon.transport.rdma.exchange import (
    CONNECT,
    NONCE_BYTES,
    VERSION,
    Acceptance,
    Offer,
    encode,
    parse_acceptance,
    regions_of,
)
from mooncask.daemon.transport.rdma.ports import why_apart
from mooncask.daemon.transport.rdma.regions import Span, WorkRequest, cut_reads
from mooncask.daemon.transport.rdma.verbs import VerbsError
from mooncask.daemon.transport.transport import Link
from mooncask.errors import OutOfBounds, PeerUnavailable

log = logging.getLogger(__name__)

PROBE_SECONDS = 2.0
"""More than RETRIES (`verbs.py`) unanswered packets take (0.5 s): then the device itself says that nobody answers."""


class Session:
    """Reads from one peer's arena until anything goes wrong; then `close`, and `connect` another."""

    def __init__(self, device: OpenDevice, pair: Pair, accepted: Acceptance) -> None:
        self._device = device
        self._pair = pair
        self._theirs = regions_of(accepted)

    @classmethod
    async def connect(cls, device: OpenDevice, link: Link, deadline: float) -> "Session":
        """Raises PeerUnavailable where RDMA does not lead to the peer, and what `link.ask` raises."""
        pair = Pair(device.engine, readable=False)
        try:
            offer = await pair.open()
            accepted = parse_acceptance(await link.ask(CONNECT, encode(Offer(VERSION, offer)), deadline))
            apart = why_apart(offer.link_layer, offer.gid, accepted.end.link_layer, accepted.end.gid)
            if apart:
                raise PairLost(apart)
            await pair.connect(accepted.end)
            await _probe(device, pair, accepted, min(deadline, time.monotonic() + PROBE_SECONDS))
            return cls(device, pair, accepted)
        except (VerbsError, PairLost) as error:
            await pair.close()
            raise PeerUnavailable(link.peer.name, f"RDMA: {error}") from error
        except BaseException:
            await pair.close()
            raise

    async def read(self, spans: Sequence[Span], deadline: float) -> None:
        """See `Pair.read`. Raises OutOfBounds as well."""
        try:
            requests = cut_reads(spans, self._theirs, self._device.ours, self._device.request_bytes_max)
        except ValueError as error:
            far = max(span.theirs + span.length for span in spans)
            raise OutOfBounds("in a peer's arena", 0, far, self._theirs.size_bytes) from error
        await self._pair.read(requests, deadline)
        self._device.bytes_read += sum(span.length for span in spans)

    async def close(self) -> None:
        await self._pair.close()


async def _probe(device: OpenDevice, pair: Pair, accepted: Acceptance, deadline: float) -> None:
    """Fetches the peer's nonce: the two ports reach each other, and it is the peer that answers. Raises PairLost."""
    async with device.probing:
        device.landing.clear()
        here = device.landing.place
        request = WorkRequest(here.address, here.key, accepted.nonce_address, accepted.nonce_key, NONCE_BYTES)
        try:
            await pair.read([request], deadline)
        except TimeoutError:
            raise PairLost(f"nothing came from {accepted.end.gid} in {PROBE_SECONDS:g} s") from None
        if device.landing.landed() != accepted.nonce:
            raise PairLost(f"behind {accepted.end.gid} is another node")
