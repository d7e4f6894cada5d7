"""What HTTP itself demands of the door, seen by clients that speak it by hand: 100-continue, hosts, headers of answers."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from http_door import Http, running_http, slow_reader

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ByHand:
    """One connection on which bytes are written and read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, text: str, body: bytes = b"") -> None:
        self.writer.write(text.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)

    async def head(self) -> str:
        async with asyncio.timeout(10):
            return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def ended(self) -> bool:
        async with asyncio.timeout(10):
            await self.reader.read()
        return self.reader.at_eof()


@asynccontextmanager
async def by_hand(http: Http) -> AsyncIterator[ByHand]:
    host, port = http.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield ByHand(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


# --- 100-continue --------------------------------------------------------------------------------------------------------


async def test_a_body_is_asked_for_when_it_is_wanted() -> None:
    async with running_http() as http, by_hand(http) as connection:
        await http.ask("PUT", "/photos")
        connection.send("PUT /photos/k HTTP/1.1\nHost: x\nContent-Length: 5\nExpect: 100-continue")
        assert (await connection.head()).encode() == CONTINUE
        connection.writer.write(b"hello")
        assert (await connection.head()).startswith("HTTP/1.1 200")
        connection.send("GET /photos/k HTTP/1.1\nHost: x")
        assert (await connection.head()).startswith("HTTP/1.1 200"), "the connection goes on"
        assert await connection.reader.readexactly(5) == b"hello"


@pytest.mark.parametrize(
    ("request_line", "headers", "status"),
    [
        ("PUT /nothere/k HTTP/1.1", "Content-Length: 5", "404"),
        ("PUT /photos/k?tagging HTTP/1.1", "Content-Length: 5", "501"),
        ("PUT /photos/k HTTP/1.1", "Content-Length: 99999999999999", "4"),
        ("PUT /photos/k HTTP/1.1", "Content-Length: 5\nContent-MD5: nonsense", "400"),
        ("PUT /photos/k HTTP/1.1", "Content-Length: 5\nx-amz-tagging: a", "501"),
        ("POST /photos?delete HTTP/1.1", "Content-Length: 99999999", "400"),
    ],
)
async def test_a_refused_body_is_never_asked_for_and_the_connection_ends(
    request_line: str, headers: str, status: str
) -> None:
    async with running_http() as http, by_hand(http) as connection:
        await http.ask("PUT", "/photos")
        connection.send(f"{request_line}\nHost: x\n{headers}\nExpect: 100-continue")
        head = await connection.head()
        assert head.startswith(f"HTTP/1.1 {status}") and "100 Continue" not in head
        assert "connection: close" in head.lower()


async def test_nothing_else_can_be_expected() -> None:
    async with running_http() as http, by_hand(http) as connection:
        connection.send("PUT /photos HTTP/1.1\nHost: x\nContent-Length: 0\nExpect: wonders")
        assert (await connection.head()).startswith("HTTP/1.1 417")


# --- hosts ---------------------------------------------------------------------------------------------------------------


async def test_a_bucket_can_be_named_by_the_host() -> None:
    async with running_http({"http.domain": "s3.example"}) as http:
        host = {"Host": "photos.s3.example:9470"}
        assert (await http.ask("PUT", "/", headers=host))[0] == 200
        for path in ("/a/b", "//lead", "/-/healthz", "/photos/k"):
            assert (await http.ask("PUT", path, data=path.encode(), headers=host))[0] == 200
            assert (await http.ask("GET", path, headers=host))[1] == path.encode()
            assert (await http.ask("GET", "/photos" + path))[1] == path.encode(), "the same as in path style"
        assert b"<Name>photos</Name>" in (await http.ask("GET", "/?list-type=2", headers=host))[1]
        assert (await http.ask("GET", "/-/healthz"))[1] == b"ok\n", "the operator's page under any other host"
        assert (await http.ask("GET", "/-/healthz", headers={"Host": "s3.example"}))[1] == b"ok\n"
        assert await http.error("GET", "/k", headers={"Host": "nothere.s3.example"}) == (404, "NoSuchBucket")


async def test_without_a_domain_every_host_is_the_daemon() -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos", headers={"Host": "videos.localhost"})
        assert (await http.ask("HEAD", "/photos"))[0] == 200


async def test_a_target_with_its_host_is_a_path_like_any_other() -> None:
    async with running_http() as http, by_hand(http) as connection:
        await http.ask("PUT", "/photos")
        await http.ask("PUT", "/photos/a//b", data=b"hello")
        connection.send(f"GET http://{http.address}/photos/a//b HTTP/1.1\nHost: {http.address}")
        assert (await connection.head()).startswith("HTTP/1.1 200")


# --- answers -------------------------------------------------------------------------------------------------------------


async def test_every_answer_says_who_made_it_when_and_for_which_request() -> None:
    async with running_http() as http:
        seen = set()
        for method, path in (("PUT", "/photos"), ("GET", "/photos"), ("GET", "/photos/k"), ("HEAD", "/photos/k")):
            _, body, headers = await http.ask(method, path)
            assert headers["Server"] == "mooncask" and headers["Date"].endswith("GMT")
            seen.add(headers["x-amz-request-id"])
            if method == "GET" and b"<Error>" in body:
                assert f"<RequestId>{headers['x-amz-request-id']}</RequestId>".encode() in body
        assert len(seen) == 4


async def test_a_head_that_fails_has_no_body_and_its_connection_goes_on() -> None:
    async with running_http() as http, by_hand(http) as connection:
        connection.send("HEAD /nothere/k HTTP/1.1\nHost: x")
        connection.send("HEAD /nothere HTTP/1.1\nHost: x")
        for _ in range(2):
            assert (await connection.head()).startswith("HTTP/1.1 404")


async def test_requests_that_come_together_are_answered_in_order() -> None:
    async with running_http() as http, by_hand(http) as connection:
        await http.ask("PUT", "/photos")
        for number in range(5):
            await http.ask("PUT", f"/photos/{number}", data=str(number).encode())
        for number in range(5):
            connection.send(f"GET /photos/{number} HTTP/1.1\nHost: x")
        for number in range(5):
            assert (await connection.head()).startswith("HTTP/1.1 200")
            assert await connection.reader.readexactly(1) == str(number).encode()


async def test_who_asks_for_the_connections_end_gets_it() -> None:
    async with running_http() as http, by_hand(http) as connection:
        connection.send("GET / HTTP/1.1\nHost: x\nConnection: close")
        assert "connection: close" in (await connection.head()).lower()
        assert await connection.ended()


# --- nonsense ----------------------------------------------------------------------------------------------------------------

NONSENSE = [
    *(
        b"GET /photos?" + query
        for query in (
            b"list-type=2&prefix=%FF&delimiter=%FE&start-after=%ED%A0%80",
            b"list-type=2&continuation-token=_____w==",
            b"list-type=2&continuation-token=%00",
            b"marker=%FF%FE&encoding-type=url",
            b"max-keys=99999999999999999999",
            b"max-keys=%D9%A1",
            b"list-type=2&list-type=3",
            b"acl#fragment",
            b"&&&=",
        )
    ),
    *(
        b"GET " + target
        for target in (
            b"/photos/%",
            b"/photos/%zz",
            b"/photos/%00",
            b"/photos/a#b",
            b"//",
            b"///",
            b"/%2F",
            b"/-/x",
            b"*",
        )
    ),
    b"GET http://[::1/photos",
    b"GET /photos/k?partNumber=0",
    b"GET /photos/k?partNumber=000000001" + b"0" * 5000,
    b"PUT /photos/k?uploadId=x&partNumber=000000000001" + b"0" * 5000,
    b"GET /photos/k?uploadId=x&max-parts=000000000001" + b"0" * 5000,
    b"GET /photos?uploads&max-uploads=000000000001" + b"0" * 5000,
    b"GET /photos/k?response-expires=%FF%0A",
]
HEADERS = [
    b"Host: \xff.s3.example",
    b"Host: a..s3.example",
    b"If-Range: \xff\r\nRange: bytes=0-0,1-1",
    b"If-Match: \xff",
    b"x-amz-copy-source: \xff\xfe/\xfd",
    b"x-amz-copy-source: photos/%FF",
    b"x-amz-meta-a: \xff\xfe",
    b"Content-Type: \xff",
    b"x-amz-checksum-crc32: \xff",
    b"x-amz-object-attributes: \xff",
]


async def test_nonsense_is_the_clients_fault_and_never_the_daemons() -> None:
    lines = [line + b" HTTP/1.1\r\nHost: x" for line in NONSENSE]
    lines += [b"GET /photos/k HTTP/1.1\r\n" + header for header in HEADERS]
    lines += [b"PUT /photos/z HTTP/1.1\r\nContent-Length: 0\r\n" + header for header in HEADERS]
    async with running_http({"http.domain": "s3.example"}) as http:
        await http.ask("PUT", "/photos")
        await http.ask("PUT", "/photos/k", data=b"x")
        for line in lines:
            async with by_hand(http) as connection:
                connection.writer.write(line + b"\r\n\r\n")
                status = int((await connection.head()).split()[1])
                assert status < 500 or status == 501, (line, status)


# --- limits --------------------------------------------------------------------------------------------------------------


async def test_a_connection_that_asks_for_nothing_or_too_slowly_is_closed() -> None:
    async with running_http({"http.idle": "200ms"}) as http, by_hand(http) as silent, by_hand(http) as slow:
        slow.writer.write(b"GET / HTTP/1.1\r\nHost: ")
        assert await silent.ended() and await slow.ended()


async def test_a_connection_above_the_limit_is_told_so_and_others_go_on() -> None:
    async with running_http({"http.connections_max": 2}) as http, by_hand(http) as first:
        async with by_hand(http) as second, by_hand(http) as third:
            first.send("GET / HTTP/1.1\nHost: x")
            assert (await first.head()).startswith("HTTP/1.1 200")
            second.send("GET / HTTP/1.1\nHost: x")
            assert (await second.head()).startswith("HTTP/1.1 200")
            assert (await third.head()).startswith("HTTP/1.1 503")
            assert await third.ended()

        async def is_let_in() -> bool:
            async with by_hand(http) as fourth:
                fourth.send("GET / HTTP/1.1\nHost: x")
                return (await fourth.head()).startswith("HTTP/1.1 200")

        async with asyncio.timeout(10):
            while not await is_let_in():
                pass  # the daemon has not heard of the others' end yet


# --- readers that read nothing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [False, True])
async def test_who_reads_nothing_of_small_answers_is_cut_off(ends: bool) -> None:
    """`ends`: the server wants to close, and waits for its last bytes to be taken."""
    async with running_http({"http.grace": "300ms", "http.connections_max": 2}) as http:
        await http.ask("PUT", "/photos")
        await http.ask("PUT", "/photos/k", data=bytes(60_000))
        last = b"GET /photos/k HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" if ends else b""
        slow = await slow_reader(http, "/photos/k")
        try:
            slow.send(b"GET /photos/k HTTP/1.1\r\nHost: x\r\n\r\n" * 150 + last)
            async with by_hand(http) as third:  # as long as both are there
                assert (await third.head()).startswith("HTTP/1.1 503")
            async with asyncio.timeout(10):
                while not await _has_room(http):  # noqa: ASYNC110  # nothing here tells when it is cut off
                    await asyncio.sleep(0.02)
        finally:
            slow.close()


async def test_who_reads_slowly_is_not_cut_off() -> None:
    async with running_http({"http.grace": "300ms"}) as http:
        await http.ask("PUT", "/photos")
        await http.ask("PUT", "/photos/k", data=bytes(60_000))
        slow = await slow_reader(http, "/photos/k")
        slow.send(b"GET /photos/k HTTP/1.1\r\nHost: x\r\n\r\n" * 150)
        loop, got, began = asyncio.get_running_loop(), 0, time.monotonic()
        try:
            while got < 151 * 60_000:
                piece = await loop.sock_recv(slow, 60_000)
                assert piece
                got += len(piece)
                if time.monotonic() < began + 1.5:
                    await asyncio.sleep(0.02)  # that it is slow is what is tested
        finally:
            slow.close()


async def _has_room(http: Http) -> bool:
    async with by_hand(http) as connection:
        connection.send("GET /-/healthz HTTP/1.1\nHost: x")
        return (await connection.head()).startswith("HTTP/1.1 200")
