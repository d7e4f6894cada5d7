"""Bodies: their framing wherever the stream is cut, what their headers may say, and every way in which they can be wrong."""

import base64
import hashlib
import hmac
import itertools
import time
import zlib
from collections.abc import AsyncIterator

import pytest
from awscrt import checksums
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from mooncask.daemon.http.bodies.body import IncomingBody, body_plan
from mooncask.daemon.http.bodies.chunked_body import (
    LINE_BYTES_MAX,
    TRAILER_BYTES_MAX,
    BadFraming,
    ChunkedDecoder,
    ChunkEnd,
    ShortBody,
)
from mooncask.daemon.http.bodies.running_digests import RunningDigests
from mooncask.daemon.http.callers.signature_chunks import ChunkSigning
from mooncask.daemon.http.refused import Refused

DATA = bytes(range(256)) * 40
UNSIGNED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"


def framed(data: bytes, chunk_bytes: int = 1000, tail: bytes = b"\r\n") -> bytes:
    """`data` in chunks of `chunk_bytes`, without signatures."""
    pieces = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n" + tail


def encoded(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


async def arriving(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def body_of(
    headers: dict[str, str], *pieces: bytes, length: int | None = None, signing: ChunkSigning | None = None
) -> IncomingBody:
    """The body that `pieces` are, announced by `headers` and a Content-Length that is right unless it is said."""
    length = sum(map(len, pieces)) if length is None else length
    return IncomingBody(body_plan(CIMultiDict(headers), length), arriving(*pieces), signing)


async def read(body: IncomingBody) -> bytes:
    """All of it, verified: what an operation does."""
    digests = RunningDigests(body.wanted)
    found = []
    async for piece in body:
        found.append(bytes(piece))
        await digests.feed(piece)
    await body.verify(await digests.finish())
    return b"".join(found)


async def refusal(headers: dict[str, str], *pieces: bytes, **named: object) -> tuple[int, str]:
    with pytest.raises(Refused) as caught:
        await read(body_of(headers, *pieces, **named))  # type: ignore[arg-type]
    return caught.value.status, caught.value.code


def chunked(decoded: int = len(DATA), **more: str) -> dict[str, str]:
    """Headers of an unsigned aws-chunked body."""
    return {
        "Content-Encoding": "aws-chunked",
        "x-amz-content-sha256": UNSIGNED,
        "x-amz-decoded-content-length": str(decoded),
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


# --- framing ---------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=3000), st.integers(1, 900), st.lists(st.integers(0, 4000), max_size=30))
def test_a_framed_stream_is_the_same_wherever_it_is_cut(data: bytes, chunk_bytes: int, cuts: list[int]) -> None:
    stream = framed(data, chunk_bytes, b"x-amz-checksum-crc32: AAAA\r\n\r\n")
    decoder = ChunkedDecoder(len(data))
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    parts = [part for start, stop in itertools.pairwise(edges) for part in decoder.feed(stream[start:stop])]
    assert b"".join(part for part in parts if not isinstance(part, ChunkEnd)) == data
    assert sum(isinstance(part, ChunkEnd) for part in parts) == len(range(0, len(data), chunk_bytes)) + 1
    assert decoder.finish() == {"x-amz-checksum-crc32": "AAAA"}


@given(st.binary(max_size=200), st.data())
def test_a_framed_stream_that_is_cut_short_is_never_taken_for_whole(data: bytes, choose: st.DataObject) -> None:
    stream = framed(data, 64, b"x-amz-checksum-crc32:AAAA\r\n")
    decoder = ChunkedDecoder(len(data))
    decoder.feed(stream[: choose.draw(st.integers(0, stream.rindex(b"0\r\n") + 2))])
    with pytest.raises(ShortBody):
        decoder.finish()


@pytest.mark.parametrize("stream", [b"5\r\nhello\r\n0\r\n\r\n", b"0\r\nx-amz-checksum-crc32:AAAA"])
def test_a_last_chunk_before_its_time_and_half_a_trailer_are_no_end(stream: bytes) -> None:
    decoder = ChunkedDecoder(10 if stream.startswith(b"5") else 0)
    decoder.feed(stream)
    with pytest.raises(ShortBody):
        decoder.finish()


@given(st.binary(max_size=300))
def test_rubbish_is_refused_or_read_but_never_a_fault(stream: bytes) -> None:
    decoder = ChunkedDecoder(100)
    try:
        decoder.feed(stream)
        decoder.finish()
    except (BadFraming, ShortBody):
        pass


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        (b"zz\r\n", "not hex"),
        (b"\r\n", "not hex"),
        (b"-5\r\n", "not hex"),
        (b"0x5\r\n", "not hex"),
        (b"5 \r\n", "not hex"),
        (b"5_0\r\n", "not hex"),
        (b"fffffffffffffffff\r\n", "not hex"),
        (b"5\nhello", "CR LF"),
        (b"5\r\nhello!", "more bytes than its header"),
        (b"5\r\nhello!\r\n", "more bytes than its header"),
        (b"65\r\n", "more bytes than x-amz-decoded-content-length"),
        (b"5;chunk-signature=abc\r\n", "chunk-signature"),
        (b"5;colour=red\r\n", "chunk-signature"),
        (b"1" * (LINE_BYTES_MAX + 1), "header of more than"),
        (b"5;" + b"x" * LINE_BYTES_MAX + b"\r\n", "header of more than"),
        (b"0\r\n" + b"x" * (TRAILER_BYTES_MAX + 1), "trailers of more than"),
    ],
)
def test_framing_that_is_wrong_is_refused_by_what_is_wrong(stream: bytes, says: str) -> None:
    for step in (len(stream), 1):
        decoder = ChunkedDecoder(100)
        with pytest.raises(BadFraming, match=says):
            for at in range(0, len(stream), step):
                decoder.feed(stream[at : at + step])
            decoder.feed(b"\r\n")


@pytest.mark.parametrize("lines", [b"name\r\n", b":x\r\n", b" a:x\r\n", b"a:x\r\nA:y\r\n"])
def test_trailers_that_are_none_are_refused(lines: bytes) -> None:
    decoder = ChunkedDecoder(0)
    decoder.feed(b"0\r\n" + lines + b"\r\n")
    with pytest.raises(BadFraming):
        decoder.finish()


@pytest.mark.slow
def test_unframing_takes_less_than_a_second_a_gigabyte_for_chunks_of_64_kib() -> None:
    """It gives out views; per chunk there is a header to read, and per piece from the network a few calls."""
    data = bytes(64 << 20)
    stream = framed(data, 64 << 10)
    pieces = [stream[at : at + (128 << 10)] for at in range(0, len(stream), 128 << 10)]
    seconds = min(_unframe_seconds(len(data), pieces) for _ in range(5))
    assert len(data) / seconds > 1e9


def _unframe_seconds(size: int, pieces: list[bytes]) -> float:
    decoder = ChunkedDecoder(size)
    start = time.perf_counter()
    for piece in pieces:
        decoder.feed(piece)
    seconds = time.perf_counter() - start
    decoder.finish()
    return seconds


# --- length ----------------------------------------------------------------------------------------------------------


async def test_a_plain_body_is_its_bytes() -> None:
    assert await read(body_of({}, DATA[:100], DATA[100:])) == DATA


async def test_a_body_of_unknown_length_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        body_plan(CIMultiDict(chunked() | {"x-amz-decoded-content-length": ""}), 100)
    assert (caught.value.status, caught.value.code) == (411, "MissingContentLength")
    with pytest.raises(Refused, match="Content-Length"):
        body_plan(CIMultiDict(), None)


@pytest.mark.parametrize("text", ["-1", "1e3", "10 ", "9" * 19, "\N{ARABIC-INDIC DIGIT ONE}"])
async def test_a_decoded_length_that_is_none_is_refused(text: str) -> None:
    assert await refusal(chunked() | {"x-amz-decoded-content-length": text}, b"") == (400, "InvalidArgument")


async def test_a_body_in_http_chunks_may_say_its_length_by_itself() -> None:
    plan = body_plan(CIMultiDict({"x-amz-decoded-content-length": "5"}), None)
    assert await read(IncomingBody(plan, arriving(b"hel", b"lo"))) == b"hello"


async def test_a_body_that_is_too_short_or_too_long_is_refused() -> None:
    assert await refusal({}, b"hell", length=5) == (400, "IncompleteBody")
    assert await refusal({}, b"hello!", length=5) == (400, "InvalidRequest")
    assert await refusal(chunked(6), framed(b"hello")) == (400, "IncompleteBody")
    assert await refusal(chunked(4), framed(b"hello")) == (400, "InvalidRequest")
    assert await refusal(chunked(5), framed(b"hello")[:7]) == (400, "IncompleteBody")


async def test_framing_belongs_to_the_request_and_not_to_the_object() -> None:
    for sent, kept in (("aws-chunked", ""), ("gzip,aws-chunked", "gzip"), ("aws-chunked, br, gzip", "br, gzip")):
        body = body_of(chunked(5) | {"Content-Encoding": sent}, framed(b"hello"))
        assert (body.size, body.content_encoding, await read(body)) == (5, kept, b"hello")


async def test_a_body_framed_in_a_way_that_is_not_known_is_refused_by_name() -> None:
    kind = "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"
    assert await refusal(chunked() | {"x-amz-content-sha256": kind}, b"") == (501, "NotImplemented")


# --- digests ---------------------------------------------------------------------------------------------------------


def digest_of(name: str, data: bytes) -> bytes:
    match name:
        case "crc32":
            return zlib.crc32(data).to_bytes(4, "big")
        case "crc32c":
            return checksums.crc32c(data).to_bytes(4, "big")
        case "crc64nvme":
            return checksums.crc64nvme(data).to_bytes(8, "big")
        case _:
            return hashlib.new(name, data).digest()


NAMES = ["crc32", "crc32c", "crc64nvme", "sha1", "sha256"]


@pytest.mark.parametrize("name", NAMES)
async def test_a_checksum_in_a_header_is_checked_and_kept(name: str) -> None:
    header = f"x-amz-checksum-{name}"
    right = encoded(digest_of(name, DATA))
    body = body_of({header: right, "x-amz-sdk-checksum-algorithm": name.upper()}, DATA)
    assert body.wanted == {name}
    assert await read(body) == DATA and body.checksums == {name: right}
    assert await refusal({header: right}, DATA[:-1] + b"!") == (400, "BadDigest")
    assert await refusal({header: "AAA="}, DATA) == (400, "InvalidRequest")
    assert await refusal({header: "%%%"}, DATA) == (400, "InvalidRequest")


@pytest.mark.parametrize("name", NAMES)
async def test_a_checksum_behind_the_body_is_checked_and_kept(name: str) -> None:
    header = f"x-amz-checksum-{name}"
    right = encoded(digest_of(name, DATA))
    headers = chunked(x_amz_trailer=header)
    body = body_of(headers, framed(DATA, tail=f"{header}:{right}\r\n\r\n".encode()))
    assert await read(body) == DATA and body.checksums == {name: right}
    wrong = framed(DATA[:-1] + b"!", tail=f"{header}:{right}\r\n\r\n".encode())
    assert await refusal(headers, wrong) == (400, "BadDigest")
    assert await refusal(headers, framed(DATA)) == (400, "MalformedTrailerError")
    assert await refusal(headers, framed(DATA, tail=b"x-other: 1\r\n\r\n")) == (400, "MalformedTrailerError")


async def test_content_md5_is_checked_and_no_checksum_of_the_object() -> None:
    body = body_of({"Content-MD5": encoded(hashlib.md5(DATA).digest())}, DATA)
    assert await read(body) == DATA and body.checksums == {}
    assert await refusal({"Content-MD5": encoded(bytes(16))}, DATA) == (400, "BadDigest")
    for malformed in ("%%%", "AAAA", ""):
        assert await refusal({"Content-MD5": malformed}, DATA) == (400, "InvalidDigest")


async def test_a_signed_hash_of_the_payload_is_checked() -> None:
    right = hashlib.sha256(DATA).hexdigest()
    assert await read(body_of({"x-amz-content-sha256": right}, DATA)) == DATA
    assert await refusal({"x-amz-content-sha256": right}, DATA[1:] + b"!") == (400, "XAmzContentSHA256Mismatch")
    assert await refusal({"x-amz-content-sha256": "abc"}, DATA) == (400, "InvalidArgument")
    assert await read(body_of({"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}, DATA)) == DATA


async def test_promises_that_contradict_each_other_are_refused() -> None:
    two = {"x-amz-checksum-crc32": encoded(bytes(4)), "x-amz-checksum-sha1": encoded(bytes(20))}
    assert await refusal(two, DATA) == (400, "InvalidRequest")
    both = chunked(x_amz_trailer="x-amz-checksum-crc32") | {"x-amz-checksum-sha1": encoded(bytes(20))}
    assert await refusal(both, DATA) == (400, "InvalidRequest")
    assert await refusal({"x-amz-trailer": "x-amz-checksum-crc32"}, DATA) == (400, "InvalidRequest")
    assert await refusal({"x-amz-sdk-checksum-algorithm": "CRC32"}, DATA) == (400, "InvalidRequest")
    whole = chunked() | {"x-amz-content-sha256": hashlib.sha256(DATA).hexdigest()}
    assert await refusal(whole, framed(DATA)) == (400, "InvalidRequest")


async def test_a_checksum_that_is_not_known_is_refused_by_name() -> None:
    for name in ("sha512", "md5", ""):
        assert await refusal({f"x-amz-checksum-{name}": "AAAA"}, DATA) == (501, "NotImplemented")
    assert await refusal(chunked(x_amz_trailer="x-amz-meta-x"), framed(DATA)) == (501, "NotImplemented")
    said = {"x-amz-checksum-type": "FULL_OBJECT", "x-amz-checksum-algorithm": "CRC32", "x-amz-checksum-mode": "ENABLED"}
    assert await read(body_of(said, DATA)) == DATA


# --- signed chunks ---------------------------------------------------------------------------------------------------

KEY_ID_DATE = "20130524"
SCOPE = f"{KEY_ID_DATE}/us-east-1/s3/aws4_request"


def aws_signing(seed: str) -> ChunkSigning:
    """The key, time and scope of the examples that AWS publishes for signed chunks."""
    key = b"AWS4wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    for part in (KEY_ID_DATE, "us-east-1", "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return ChunkSigning(key, f"{KEY_ID_DATE}T000000Z", SCOPE, seed)


AWS_BODY = b"a" * 66560
AWS_SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
AWS_CHUNKS = (
    "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
    "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
    "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
)
AWS_TRAILER_SEED = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
AWS_TRAILER_CHUNKS = (
    "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
    "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
    "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
)
AWS_TRAILER_SIGNATURE = "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"


def signed_stream(signatures: tuple[str, ...], tail: bytes = b"\r\n") -> bytes:
    """The body of AWS's examples: chunks of 64 KiB, 1 KiB and nothing."""
    pieces = (AWS_BODY[: 64 << 10], AWS_BODY[64 << 10 :], b"")
    chunks = [
        b"%x;chunk-signature=%b\r\n%b" % (len(piece), signature.encode(), piece + b"\r\n" if piece else b"")
        for piece, signature in zip(pieces, signatures, strict=True)
    ]
    return b"".join(chunks) + tail


def signed_headers(kind: str = SIGNED, **more: str) -> dict[str, str]:
    return chunked(len(AWS_BODY), **more) | {"x-amz-content-sha256": kind}


async def test_the_signed_chunks_that_aws_published_are_right() -> None:
    body = body_of(signed_headers(), signed_stream(AWS_CHUNKS), signing=aws_signing(AWS_SEED))
    assert await read(body) == AWS_BODY


@pytest.mark.parametrize("blank", [b"", b"\r\n"])
async def test_the_signed_trailer_that_aws_published_is_right(blank: bytes) -> None:
    headers = signed_headers(f"{SIGNED}-TRAILER", x_amz_trailer="x-amz-checksum-crc32c")
    tail = b"x-amz-checksum-crc32c:sOO8/Q==\r\n" + blank
    tail += f"x-amz-trailer-signature:{AWS_TRAILER_SIGNATURE}\r\n\r\n".encode()
    signing = aws_signing(AWS_TRAILER_SEED)
    body = body_of(headers, signed_stream(AWS_TRAILER_CHUNKS, tail), signing=signing)
    assert await read(body) == AWS_BODY and body.checksums == {"crc32c": "sOO8/Q=="}
    wrong = tail.replace(b"d81f", b"d82f")
    stream = signed_stream(AWS_TRAILER_CHUNKS, wrong)
    assert await refusal(headers, stream, signing=signing) == (403, "SignatureDoesNotMatch")
    unsigned = signed_stream(AWS_TRAILER_CHUNKS, b"x-amz-checksum-crc32c:sOO8/Q==\r\n\r\n")
    assert await refusal(headers, unsigned, signing=signing) == (403, "SignatureDoesNotMatch")


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_each_signature_of_a_chunk_is_checked(which: int) -> None:
    wrong: list[str] = [*AWS_CHUNKS]
    wrong[which] = "0" * 64
    stream = signed_stream(tuple(wrong))
    answer = await refusal(signed_headers(), stream, signing=aws_signing(AWS_SEED))
    assert answer == (403, "SignatureDoesNotMatch")


@pytest.mark.parametrize("at", [100, (64 << 10) + 200, (65 << 10) + 200])
async def test_a_changed_byte_in_a_signed_chunk_is_found(at: int) -> None:
    stream = bytearray(signed_stream(AWS_CHUNKS))
    stream[at] = stream[at] ^ 1
    answer = await refusal(signed_headers(), bytes(stream), signing=aws_signing(AWS_SEED))
    assert answer == (403, "SignatureDoesNotMatch")


async def test_a_signed_body_without_signatures_on_its_chunks_is_refused() -> None:
    answer = await refusal(signed_headers(), framed(AWS_BODY), signing=aws_signing(AWS_SEED))
    assert answer == (403, "SignatureDoesNotMatch")


async def test_a_signed_body_that_ends_after_a_whole_chunk_is_refused() -> None:
    stream = signed_stream(AWS_CHUNKS)
    cut = stream[: stream.rindex(b"400;chunk")]
    answer = await refusal(signed_headers(), cut, signing=aws_signing(AWS_SEED))
    assert answer == (400, "IncompleteBody")
