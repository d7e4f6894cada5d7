"""The side that is read from: a queue pair for each link that asks for one, destroyed before that link's leases end."""

from mooncask.daemon.transport.rdma.device import OpenDevice
from mooncask.daemon.transport.rdma.engine import Pair, PairLost
from mooncask.daemon.transport.rdma.exchange import CONNECT, Acceptance, encode, parse_offer
from mooncask.daemon.transport.rdma.ports import why_apart
from mooncask.daemon.transport.rdma.verbs import VerbsError
from mooncask.daemon.transport.tcp.served_link import ServedLink
from mooncask.daemon.transport.tcp.server import TcpServer
from mooncask.errors import BadRequest, PeerUnavailable


class Responder:
    """Answers CONNECT. A link has one queue pair at a time: another offer destroys the one before."""

    def __init__(self, device: OpenDevice, server: TcpServer) -> None:
        self._device = device
        self.pairs: dict[ServedLink, Pair] = {}
        server.handle_link(CONNECT, self._accept)

    async def _accept(self, link: ServedLink, payload: bytes) -> bytes:
        offer = parse_offer(payload)
        here = self._device.place
        apart = why_apart(offer.end.link_layer, offer.end.gid, here.port.link_layer, here.gid.address)
        if apart:
            raise BadRequest(f"no RDMA between these nodes: {apart}")
        await self._revoke(link)
        link.revoke_with(lambda: self._revoke(link))
        pair = self.pairs[link] = Pair(self._device.engine, readable=True)
        try:
            end = await pair.open()
            await pair.connect(offer.end)
        except (VerbsError, PairLost) as error:
            await self._revoke(link)
            raise PeerUnavailable(link.peer.name, f"RDMA: {error}") from error
        except BaseException:
            await self._revoke(link)
            raise
        nonce = self._device.landing
        return encode(Acceptance(end, self._device.shared, nonce.nonce, nonce.shared.address, nonce.shared.key))

    async def _revoke(self, link: ServedLink) -> None:
        pair = self.pairs.pop(link, None)
        if pair is not None:
            await pair.close()
