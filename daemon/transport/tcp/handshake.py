"""The handshake over TCP, once for coroutines (control connections) and once for threads (data connections).

What is said and what is proved is `authentication.py`'s. The preambles travel in the clear, everything else over TLS if there is any.
"""

import asyncio
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from mooncask.daemon.transport import authentication as auth
from mooncask.daemon.transport.messages import HEADER
from mooncask.daemon.transport.transport import NodeIdentity
from mooncask.errors import BadRequest, MooncaskError


@dataclass(frozen=True, slots=True)
class Credentials:
    """What this node proves itself with. `client_tls` and `server_tls` are both None or both set."""

    identity: NodeIdentity
    key: bytes = field(repr=False)
    client_tls: ssl.SSLContext | None = None
    server_tls: ssl.SSLContext | None = None
    certificate: bytes = b""
    """This node's own, in DER; empty without TLS."""

    @property
    def transport(self) -> str:
        return "tcp+tls" if self.client_tls is not None else "tcp"

    def preamble(self, purpose: int) -> auth.Preamble:
        return auth.Preamble(auth.PROTOCOL, purpose, self.client_tls is not None)

    def introduce(self, token: bytes = b"") -> bytes:
        mine = self.identity
        nonce = secrets.token_bytes(auth.NONCE_BYTES)
        return auth.encode(auth.Introduction(mine.name, mine.incarnation, mine.address, nonce, token))


@dataclass(frozen=True, slots=True)
class Met:
    """The other side, which has proved that it knows the secret; on a client `token` names the link, for its data connections."""

    introduction: auth.Introduction
    token: bytes


class ClientSide:
    """The client's half, in the order of its methods; each takes what came and gives what to send."""

    def __init__(self, credentials: Credentials, purpose: int, address: str, token: bytes = b"") -> None:
        self._credentials = credentials
        self._address = address
        self._preamble = credentials.preamble(purpose)
        self._mine = credentials.introduce(token)
        self._theirs_preamble = b""

    def preamble(self) -> bytes:
        return self._preamble.encode()

    def preamble_came(self, data: bytes) -> None:
        auth.check_preamble(self._preamble, auth.parse_preamble(data))
        self._theirs_preamble = data

    def introduction(self) -> bytes:
        return self._mine

    def answer_came(self, answer: bytes, certificate: bytes) -> bytes:
        """`certificate` is the server's as it was seen."""
        self._peer = auth.parse_introduction(answer)
        self._transcript = auth.Transcript(
            self.preamble(), self._theirs_preamble, self._credentials.certificate, certificate, self._mine, answer
        )
        return auth.encode(auth.Proof(self._transcript.client_proof(self._credentials.key)))

    def proof_came(self, data: bytes) -> Met:
        proof = auth.parse_proof(data)
        auth.check_proof(self._transcript.server_proof(self._credentials.key), proof.mac, self._address)
        return Met(self._peer, proof.token)


class ServerSide:
    """The server's half."""

    def __init__(self, credentials: Credentials, theirs: bytes) -> None:
        """Raises BadRequest for what is no preamble; `check` raises what is wrong with it, once ours was sent."""
        self._credentials = credentials
        self._theirs_preamble = theirs
        self.client = auth.parse_preamble(theirs)
        purpose = self.client.purpose if self.client.purpose in (auth.CONTROL, auth.DATA) else auth.CONTROL
        self._preamble = credentials.preamble(purpose)

    def preamble(self) -> bytes:
        return self._preamble.encode()

    def check(self) -> None:
        auth.check_preamble(self._preamble, self.client)

    def introduction_came(self, data: bytes) -> bytes:
        self._peer = auth.parse_introduction(data)
        self._theirs = data
        self._mine = self._credentials.introduce()
        return self._mine

    def proof_came(self, data: bytes, certificate: bytes, token: bytes) -> tuple[Met, bytes]:
        """`certificate` is the client's as it was seen; `token` what to tell it. Raises AccessDenied."""
        transcript = auth.Transcript(
            self._theirs_preamble,
            self.preamble(),
            certificate,
            self._credentials.certificate,
            self._theirs,
            self._mine,
        )
        auth.check_proof(transcript.client_proof(self._credentials.key), auth.parse_proof(data).mac, self._peer.name)
        answer = auth.encode(auth.Proof(transcript.server_proof(self._credentials.key), token))
        return Met(self._peer, self._peer.token), answer


def framed(body: bytes) -> bytes:
    return HEADER.pack(len(body)) + body


def handshake_length(header: bytes) -> int:
    """Strangers send no long frames. Raises BadRequest."""
    (length,) = HEADER.unpack(header)
    if length > auth.HANDSHAKE_FRAME_BYTES_MAX:
        raise BadRequest(f"a frame of {length} bytes before the handshake is over")
    return int(length)


def refusal(error: MooncaskError) -> bytes:
    return framed(auth.encode(auth.Refusal(type(error).__name__, error.message)))


# --- coroutines ------------------------------------------------------------------------------------------------------


async def receive_exactly(loop: asyncio.AbstractEventLoop, sock: socket.socket, count: int) -> bytes:
    """From a socket that no transport has yet. Raises ConnectionError at its end."""
    data = b""
    while len(data) < count:
        part = await loop.sock_recv(sock, count - len(data))
        if not part:
            raise ConnectionError("closed in the handshake")
        data += part
    return data


async def read_handshake_frame(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readexactly(handshake_length(await reader.readexactly(HEADER.size)))
    except asyncio.IncompleteReadError as error:
        raise ConnectionError("closed in the handshake") from error


def send_handshake(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Raises ConnectionError after the connection's end, where uvloop's transport raises RuntimeError."""
    if writer.is_closing():
        raise ConnectionError("closed in the handshake")
    writer.write(data)


async def greet(side: ClientSide, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Met:
    """The client's half after the preambles."""
    send_handshake(writer, framed(side.introduction()))
    answer = await read_handshake_frame(reader)
    send_handshake(writer, framed(side.answer_came(answer, certificate_of(writer.get_extra_info("ssl_object")))))
    return side.proof_came(await read_handshake_frame(reader))


async def admit(
    side: ServerSide, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes, refuse: "Judge"
) -> Met:
    """The server's half after the preambles; `refuse` raises where a peer that knows the secret is not wanted."""
    send_handshake(writer, framed(side.introduction_came(await read_handshake_frame(reader))))
    proof = await read_handshake_frame(reader)
    try:
        met, answer = side.proof_came(proof, certificate_of(writer.get_extra_info("ssl_object")), token)
        await refuse(met.introduction)
    except MooncaskError as error:
        send_handshake(writer, refusal(error))
        raise
    send_handshake(writer, framed(answer))
    return met


Judge = Callable[[auth.Introduction], Awaitable[None]]


def certificate_of(tls: ssl.SSLObject | ssl.SSLSocket | None) -> bytes:
    """The other side's, in DER."""
    return b"" if tls is None else tls.getpeercert(binary_form=True) or b""


# --- threads ---------------------------------------------------------------------------------------------------------


def receive_all(sock: socket.socket, count: int) -> bytes:
    """Raises ConnectionError at the stream's end."""
    data = bytearray(count)
    receive_into(sock, memoryview(data))
    return bytes(data)


def receive_into(sock: socket.socket, target: memoryview) -> None:
    """Fills `target`; the GIL is released while the kernel copies. Raises ConnectionError at the stream's end."""
    flags = 0 if isinstance(sock, ssl.SSLSocket) else socket.MSG_WAITALL
    done = 0
    while done < len(target):
        count = sock.recv_into(target[done:], 0, flags)
        if not count:
            raise ConnectionError("the peer closed the connection")
        done += count


def receive_handshake_frame(sock: socket.socket) -> bytes:
    return receive_all(sock, handshake_length(receive_all(sock, HEADER.size)))


def greet_blocking(side: ClientSide, sock: socket.socket) -> Met:
    """As `greet`."""
    tls = sock if isinstance(sock, ssl.SSLSocket) else None
    sock.sendall(framed(side.introduction()))
    sock.sendall(framed(side.answer_came(receive_handshake_frame(sock), certificate_of(tls))))
    return side.proof_came(receive_handshake_frame(sock))


def admit_blocking(side: ServerSide, sock: socket.socket, check: Callable[[auth.Introduction], None]) -> Met:
    """As `admit`; `check` raises for a data connection that belongs to no link."""
    tls = sock if isinstance(sock, ssl.SSLSocket) else None
    sock.sendall(framed(side.introduction_came(receive_handshake_frame(sock))))
    proof = receive_handshake_frame(sock)
    try:
        met, answer = side.proof_came(proof, certificate_of(tls), b"")
        check(met.introduction)
    except MooncaskError as error:
        sock.sendall(refusal(error))
        raise
    sock.sendall(framed(answer))
    return met
