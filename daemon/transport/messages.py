"""The messages of a link after its handshake, as docs/PEERS.md publishes them. Nothing here does I/O.

Control connection: frames of a u32 length (little endian) and that many bytes of msgpack: an array of the message's tag, the
request's id, and its fields. The client (who dialled) asks, the server answers; a Ping may come from the client at any time.
Batches travel as columns. Deadlines travel as milliseconds left and are counted from the frame's arrival.

Data connection: the client sends a frame with a ReadPieces and nothing more until it is answered; the answer is a header of
64 bytes that begins with a u32: 0, and then the bytes of all pieces in order and nothing between them; else the length of a
Failed, which follows in place of the bytes, with zeros up to a multiple of 64.
"""

import struct
from typing import TypeVar

import msgspec

from mooncask.errors import BadRequest, MooncaskError, error_data, revive

FRAME_BYTES_MAX = 4 << 20
KEYS_MAX = 1024
KEY_BYTES_MAX = 1024
ASK_BYTES_MAX = 2 << 20
PIECES_MAX = 4096
HEADER = struct.Struct("<I")
ANSWER_BYTES = 64
"""Of the header before the bytes, which would else lie at odd places of the kernel's buffers: copies in and out of them then take
a third longer."""
ANSWER = struct.Struct(f"<I{ANSWER_BYTES - HEADER.size}x")
BYTES_FOLLOW = ANSWER.pack(0)

_T = TypeVar("_T")


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    id: int


class Lease(Message, frozen=True, tag=1):
    """Holds blocks for this link. Answered by Leased or Failed."""

    namespace: bytes
    keys: list[bytes]
    deadline_ms: int


class Release(Message, frozen=True, tag=2):
    """Ends leases; unknown ones are ignored. No answer."""

    leases: list[int]


class Ask(Message, frozen=True, tag=3):
    """Anything else, by kind. Answered by Answer or Failed."""

    kind: str
    payload: bytes
    deadline_ms: int


class Cancel(Message, frozen=True, tag=4):
    """Nobody waits for the answer to request `id` any more. What it leases is released by the server if it can still be, by the
    client when the answer comes nevertheless."""


class Ping(Message, frozen=True, tag=5):
    """The link is alive. Answered by Pong."""


class LeaseWriting(Message, frozen=True, tag=6):
    """As Lease, for blocks that somebody is still writing. In the Leased `checksums` are empty."""

    namespace: bytes
    keys: list[bytes]
    deadline_ms: int


class Leased(Message, frozen=True, tag=16):
    """Item by item; a lease of 0: the block is not here, and its other columns are empty. `keys` repeats what was asked."""

    leases: list[int]
    keys: list[bytes]
    sizes: list[int]
    checksums: list[bytes]
    parents: list[bytes]
    depths: list[int]
    tokens: list[int]
    attributes: list[bytes]
    offsets: list[int]
    """In the holder's arena: what RDMA reads by."""


class Answer(Message, frozen=True, tag=17):
    payload: bytes


class Failed(Message, frozen=True, tag=18):
    """`error` is the class's name in `mooncask.errors`; `data` its attributes."""

    error: str
    message: str
    data: dict[str, str | int | float] = {}


class Pong(Message, frozen=True, tag=19):
    pass


class Ending(Message, frozen=True, tag=20):
    """The server ends the link, and says why."""

    reason: str


class ReadPieces(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of each lease `lengths[i]` bytes from `starts[i]` on."""

    leases: list[int]
    starts: list[int]
    lengths: list[int]


Request = Lease | LeaseWriting | Release | Ask | Cancel | Ping
Reply = Leased | Answer | Failed | Pong | Ending

_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Request)
_replies = msgspec.msgpack.Decoder(Reply)
_failures = msgspec.msgpack.Decoder(Failed)
_reads = msgspec.msgpack.Decoder(ReadPieces)


def frame(message: msgspec.Struct) -> bytes:
    """Raises BadRequest for one that is too long."""
    body = _encoder.encode(message)
    if len(body) > FRAME_BYTES_MAX:
        raise BadRequest(f"a message of {len(body)} bytes between peers; at most {FRAME_BYTES_MAX} are allowed")
    return HEADER.pack(len(body)) + body


def frame_length(header: bytes) -> int:
    """Raises BadRequest for more than FRAME_BYTES_MAX."""
    (length,) = HEADER.unpack(header)
    if length > FRAME_BYTES_MAX:
        raise BadRequest(f"a frame of {length} bytes between peers; at most {FRAME_BYTES_MAX} are allowed")
    return int(length)


def parse_request(body: bytes) -> Request:
    """Raises BadRequest."""
    return _parse(_requests, body)


def parse_reply(body: bytes) -> Reply:
    """Raises BadRequest."""
    reply = _parse(_replies, body)
    if isinstance(reply, Leased):
        count = len(reply.leases)
        columns = (
            reply.keys,
            reply.sizes,
            reply.checksums,
            reply.parents,
            reply.depths,
            reply.tokens,
            reply.attributes,
            reply.offsets,
        )
        if any(len(column) != count for column in columns):
            raise BadRequest("a batch with columns of different lengths")
    return reply


def refused_read(error: MooncaskError) -> bytes:
    """The answer to a ReadPieces that has no bytes."""
    body = _encoder.encode(failed(0, error))
    return ANSWER.pack(len(body)) + body + bytes(-len(body) % ANSWER_BYTES)


def refusal_length(header: bytes) -> int:
    """How long the Failed is that follows an answer's header, without its padding; 0: the bytes follow. Raises BadRequest."""
    return frame_length(header[: HEADER.size])


def padded(length: int) -> int:
    return -(-length // ANSWER_BYTES) * ANSWER_BYTES


def parse_failed(body: bytes) -> Failed:
    """Raises BadRequest."""
    return _parse(_failures, body)


def parse_read(body: bytes) -> ReadPieces:
    """Raises BadRequest."""
    read = _parse(_reads, body)
    if not 0 < len(read.leases) <= PIECES_MAX or len({len(read.leases), len(read.starts), len(read.lengths)}) != 1:
        raise BadRequest(f"a read has 1 to {PIECES_MAX} pieces, each with a lease, a start and a length")
    if min(read.starts) < 0 or min(read.lengths) <= 0:
        raise BadRequest("a read has no negative starts and no empty pieces")
    return read


def failed(number: int, error: MooncaskError) -> Failed:
    return Failed(number, type(error).__name__, error.message[:4096], error_data(error))


def error_of(reply: Failed) -> MooncaskError:
    """The error that the peer raised, as it raised it."""
    return revive(reply.error, reply.message, reply.data)


def check_keys(namespace: bytes, keys: list[bytes]) -> None:
    """Raises BadRequest."""
    if len(namespace) != 16:
        raise BadRequest(f"a namespace id of {len(namespace)} bytes; it has 16")
    if not 0 < len(keys) <= KEYS_MAX:
        raise BadRequest(f"{len(keys)} keys in one request to a peer; 1 to {KEYS_MAX} are allowed")
    if not min(map(len, keys)) or max(map(len, keys)) > KEY_BYTES_MAX:
        raise BadRequest(f"a key has 1 to {KEY_BYTES_MAX} bytes")


def _parse(decoder: msgspec.msgpack.Decoder[_T], body: bytes) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError) as error:  # ValueError: text that is no UTF-8
        raise BadRequest(f"a message between peers that is none: {error}") from error
