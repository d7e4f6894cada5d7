"""Objects with their headers, streamed both ways over the daemon's Unix socket for HTTP: what an export keeps of an object
beside its bytes, and objects longer than a block."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mooncask.client.http import HttpClient

PIECE_BYTES = 8 << 20
KEPT = {
    "content-type",
    "content-encoding",
    "content-language",
    "content-disposition",
    "cache-control",
    "expires",
}
META = "x-amz-meta-"


class ObjectClient(HttpClient):
    """One thread at a time, as HttpClient."""

    def headers_of(self, namespace: str, key: str) -> tuple[int, dict[str, str]]:
        """Size, and the headers that are kept. Raises NoSuchBlock."""
        response = self._ask("HEAD", namespace, key, self._time(None))
        response.read()
        return self._length(response), {
            name.lower() if name.lower() != "etag" else "ETag": value
            for name, value in response.getheaders()
            if _is_kept(name) or name.lower() == "etag"
        }

    def pieces(self, namespace: str, key: str, size: int, etag: str) -> Iterator[bytes]:
        """The bytes of that very version. Raises NoSuchBlock, and what the daemon answers when it was replaced."""
        for start in range(0, size, PIECE_BYTES):
            yield self.get(namespace, key, start, min(start + PIECE_BYTES, size), checksum=etag.strip('"'))

    def put_pieces(
        self, namespace: str, key: str, size: int, pieces: Iterable[bytes], headers: Mapping[str, str]
    ) -> None:
        """Stores an object from a stream. When `pieces` raises, nothing is stored and the error passes on."""
        sent = {name: value for name, value in headers.items() if _is_kept(name)}
        body: Any = pieces
        self._connection.close()  # a connection that had gone stale would be noticed with the stream half read
        try:
            response = self._ask(
                "PUT", namespace, key, self._time(None), headers={**sent, "Content-Length": str(size)}, body=body
            )
            response.read()
        except BaseException:
            self._connection.close()
            raise


def _is_kept(header: str) -> bool:
    """Whether it says what an object is; an archive's other headers would say what is to be done."""
    return header.lower() in KEPT or header.lower().startswith(META)
