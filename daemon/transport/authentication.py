"""Who may talk: both ends prove that they know the cluster's secret, before anything else is said. Pure; docs/PEERS.md has the
messages in order.

The proofs cover all that both have said, with fresh nonces of both sides and, over TLS, both certificates: neither can be used
again, nor passed on by somebody in between who has a certificate of his own. Without TLS what follows is not protected against
somebody who can alter packets (docs/THREATS.md); payloads are checked, but not against a forger.
"""

import hashlib
import hmac
from dataclasses import dataclass

import msgspec

from mooncask.daemon.transport.transport import INCARNATION_BYTES
from mooncask.errors import AccessDenied, BadRequest, ProtocolMismatch

PROTOCOL = 1
MAGIC = b"MOONPEER"
NONCE_BYTES = 32
TOKEN_BYTES = 16
PREAMBLE_BYTES = 12
CONTROL, DATA = 1, 2
HANDSHAKE_FRAME_BYTES_MAX = 1024
_NAME_BYTES_MAX = 256
_TLS = 1
_KEY_DOMAIN = b"mooncask cluster secret 1\0"
_TRANSCRIPT_DOMAIN = b"mooncask peers 1\0"


@dataclass(frozen=True, slots=True)
class Preamble:
    """The first 12 bytes of each side, never encrypted, so that another version and a missing TLS can be told by name."""

    protocol: int
    purpose: int
    tls: bool

    def encode(self) -> bytes:
        return MAGIC + self.protocol.to_bytes(2, "little") + bytes([self.purpose, _TLS * self.tls])


def parse_preamble(data: bytes) -> Preamble:
    """Raises BadRequest for what is no Mooncask peer."""
    if len(data) != PREAMBLE_BYTES or not data.startswith(MAGIC):
        raise BadRequest("the other side is no Mooncask node, or this is not its cluster.listen")
    return Preamble(int.from_bytes(data[8:10], "little"), data[10], bool(data[11] & _TLS))


def check_preamble(ours: Preamble, theirs: Preamble) -> None:
    """Raises ProtocolMismatch and AccessDenied."""
    if ours.protocol != theirs.protocol:
        raise ProtocolMismatch(ours.protocol, theirs.protocol)
    if ours.tls != theirs.tls:
        with_tls, without = ("this node", "the other") if ours.tls else ("the other", "this node")
        raise AccessDenied(f"{with_tls} speaks TLS to its peers and {without} does not: set cluster.tls_* on both")
    if ours.purpose != theirs.purpose:
        raise BadRequest(f"purpose {theirs.purpose} in answer to {ours.purpose}")


class Introduction(msgspec.Struct, frozen=True, array_like=True):
    """Either side's: the client's comes first. `token` names the link that a data connection belongs to."""

    name: str
    incarnation: bytes
    address: str
    nonce: bytes
    token: bytes = b""


class Proof(msgspec.Struct, frozen=True, array_like=True):
    """HMAC-SHA256 over the transcript. The server's carries the token by which data connections name the link."""

    mac: bytes
    token: bytes = b""


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """In the place of the server's Proof."""

    error: str
    message: str


_encode = msgspec.msgpack.Encoder().encode
_introduction = msgspec.msgpack.Decoder(Introduction)
_proof = msgspec.msgpack.Decoder(Proof)
_refusal = msgspec.msgpack.Decoder(Refusal)


def encode(message: Introduction | Proof | Refusal) -> bytes:
    return _encode(message)


def parse_introduction(data: bytes) -> Introduction:
    """Raises BadRequest."""
    try:
        found = _introduction.decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadRequest(f"no introduction: {error}") from error
    if len(found.incarnation) != INCARNATION_BYTES or len(found.nonce) != NONCE_BYTES:
        raise BadRequest("an introduction with an incarnation or nonce of a wrong length")
    if not found.name or len(found.name.encode()) > _NAME_BYTES_MAX or not found.name.isprintable():
        raise BadRequest("an introduction without a node's name")
    return found


def parse_proof(data: bytes) -> Proof:
    """Raises BadRequest, and AccessDenied where the other side has refused."""
    try:
        refusal = _refusal.decode(data)
    except (msgspec.MsgspecError, ValueError):
        try:
            return _proof.decode(data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise BadRequest(f"no proof: {error}") from error
    raise AccessDenied(f"refused by the peer: {refusal.message[:300]}")


def derive_key(secret: str) -> bytes:
    """The HMAC key. An empty secret is legal on loopback only (`config_source.py`)."""
    return hashlib.sha256(_KEY_DOMAIN + secret.encode()).digest()


@dataclass(frozen=True, slots=True)
class Transcript:
    """All that was said before the proofs, in the order in which it was said."""

    client_preamble: bytes
    server_preamble: bytes
    client_certificate: bytes
    server_certificate: bytes
    introduction: bytes
    answer: bytes

    def client_proof(self, key: bytes) -> bytes:
        return self._mac(key, b"client")

    def server_proof(self, key: bytes) -> bytes:
        return self._mac(key, b"server")

    def _mac(self, key: bytes, role: bytes) -> bytes:
        """The role keeps a proof from being sent back as its own answer."""
        parts = (
            self.client_preamble,
            self.server_preamble,
            self.client_certificate,
            self.server_certificate,
            self.introduction,
            self.answer,
        )
        said = b"".join(len(part).to_bytes(4, "little") + part for part in (role, *parts))
        return hmac.digest(key, _TRANSCRIPT_DOMAIN + said, "sha256")


def check_proof(expected: bytes, given: bytes, peer: str) -> None:
    """In constant time. Raises AccessDenied."""
    if not hmac.compare_digest(expected, given):
        raise AccessDenied(f"peer {peer} has another cluster secret: cluster.secret must be the same on all nodes")
