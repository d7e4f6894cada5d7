"""An export in an S3 bucket, by way of obstore (the extra `s3`).

    <prefix>/mooncask-export.json    the manifest, written first
    <prefix>/blocks/<name>           payloads; the name is the key in hex, of an object SHA-256 of the key
    <prefix>/index/<number>.json     entries of the blocks that were written, a list a file
    <prefix>/mooncask-end.json       written last

What is in an index file is there whole: a run that goes on reads those. Credentials and region come from the AWS_*
variables, as for other S3 tools; without any, requests are not signed.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from types import TracebackType
from typing import Any, Self

from mooncask.errors import AccessDenied, BadArgument, BadRequest
from mooncask.tools.transfer.archive import Chunks
from mooncask.tools.transfer.manifest import (
    END_NAME,
    MANIFEST_NAME,
    End,
    Entry,
    Manifest,
    decode_end,
    decode_entries,
    decode_manifest,
    encode,
    mark,
)

INDEX_BLOCKS = 256
INDEX_BYTES = 256 << 20
"""What a run that is killed has to write again, at most."""
UPLOADS = 4
"""Under way at a time, and with it copies of small blocks in memory."""
COPIED_BYTES_MAX = 16 << 20
"""Larger payloads are streamed, one at a time."""
PART_BYTES = 8 << 20


class Bucket:
    """One prefix in one bucket. Raises OSError, AccessDenied and BadRequest for what the endpoint refuses."""

    def __init__(self, url: str, endpoint_url: str) -> None:
        try:
            import obstore
            import obstore.store
        except ImportError as error:
            raise BadArgument("target", url, 'buckets need the package "obstore" (pip install mooncask[s3])') from error
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if not bucket:
            raise BadRequest(f"{url}: s3://bucket/prefix is wanted")
        config: dict[str, Any] = {"endpoint": endpoint_url.rstrip("/")} if endpoint_url else {}
        if not os.environ.get("AWS_ACCESS_KEY_ID"):
            config["skip_signature"] = True
        plain = endpoint_url.startswith("http://")
        self.url = url
        self._obstore: Any = obstore
        make: Any = obstore.store.S3Store
        self._store: Any = make(
            bucket,
            prefix=prefix.strip("/") or None,
            config={"region": os.environ.get("AWS_REGION", "us-east-1"), **config},
            client_options={"allow_http": plain},
            retry_config={"max_retries": 3},
        )

    def put(self, name: str, data: bytes) -> None:
        with self._translated(name):
            self._obstore.put(self._store, name, data, use_multipart=False)

    def put_stream(self, name: str, chunks: Chunks) -> None:
        """In parts; nothing is there before the last one."""
        with self._translated(name):
            parts = (bytes(chunk) for chunk in chunks)
            self._obstore.put(self._store, name, parts, chunk_size=PART_BYTES, max_concurrency=2)

    def get(self, name: str) -> bytes | None:
        """None when there is no such object, or no such bucket."""
        with self._translated(name):
            try:
                return bytes(self._obstore.get(self._store, name).bytes())
            except FileNotFoundError:
                return None

    def stream(self, name: str) -> Iterator[bytes]:
        with self._translated(name):
            for chunk in self._obstore.get(self._store, name).stream(min_chunk_size=PART_BYTES):
                yield bytes(chunk)

    def names(self, prefix: str) -> list[str]:
        """In the order of their names."""
        with self._translated(prefix):
            pages = self._obstore.list(self._store, prefix)
            return sorted(str(found["path"]) for page in pages for found in page)

    @contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        from obstore import exceptions

        try:
            yield
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise AccessDenied(
                f"{self.url}: the endpoint refuses {name}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from error
        except FileNotFoundError as error:
            raise BadRequest(f"{self.url}: no {name} there; is the bucket's name right?") from error
        except exceptions.BaseError as error:
            said = str(error).split("\n")[0][:300]
            raise OSError(errno.EIO, f"the endpoint failed ({said}); run it again to go on", self.url) from error


class BucketWriter:
    """See `archive.Writer`."""

    def __init__(self, bucket: Bucket, manifest: Manifest, begun: "list[Entry]", index_files: int) -> None:
        self._bucket, self._manifest = bucket, manifest
        self.already = {entry.key: mark(entry) for entry in begun}
        self._blocks, self._size_bytes = len(begun), sum(entry.size for entry in begun)
        self._index_files = index_files
        self._unlisted: list[Entry] = []
        self._pool = ThreadPoolExecutor(UPLOADS)
        self._uploads: list[Future[None]] = []

    @classmethod
    def open(cls, url: str, manifest: Manifest, endpoint_url: str) -> Self:
        bucket = Bucket(url, endpoint_url)
        data = bucket.get(MANIFEST_NAME)
        if data is None:
            bucket.put(MANIFEST_NAME, encode(manifest))
            return cls(bucket, manifest, [], 0)
        decode_manifest(data, url).check_continues(manifest, url)
        files = bucket.names("index")
        return cls(bucket, manifest, list(_entries(bucket, files)), len(files))

    def add(self, entry: Entry, payload: Chunks) -> None:
        name = _block_name(self._manifest, entry)
        if entry.size <= COPIED_BYTES_MAX:
            self._upload(self._bucket.put, name, b"".join(payload))  # a copy: the lease ends when this returns
        else:
            self._bucket.put_stream(name, payload)
        self._unlisted.append(entry)
        self._blocks += 1
        self._size_bytes += entry.size
        if len(self._unlisted) >= INDEX_BLOCKS or sum(found.size for found in self._unlisted) >= INDEX_BYTES:
            self._list()

    def finish(self) -> None:
        self._list()
        self._bucket.put(END_NAME, encode(End(blocks=self._blocks, size_bytes=self._size_bytes)))

    def close(self) -> None:
        """Waits for uploads under way: what they write is written again by the next run, which is harmless."""
        self._pool.shutdown(cancel_futures=True)

    def _upload(self, put: Callable[[str, bytes], None], name: str, data: bytes) -> None:
        while len(self._uploads) >= UPLOADS:
            self._uploads.pop(0).result()
        self._uploads.append(self._pool.submit(put, name, data))

    def _list(self) -> None:
        """All that was added is there: an index file may say so."""
        while self._uploads:
            self._uploads.pop(0).result()
        if self._unlisted:
            self._bucket.put(f"index/{self._index_files:08}.json", encode(self._unlisted))
            self._index_files += 1
            self._unlisted = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BucketPayload:
    """One block's bytes."""

    def __init__(self, bucket: Bucket, name: str) -> None:
        self._bucket, self._name = bucket, name

    def chunks(self) -> Iterator[bytes]:
        return self._bucket.stream(self._name)


class BucketReader:
    """See `archive.Reader`."""

    def __init__(self, bucket: Bucket, manifest: Manifest, files: list[str], end: End | None) -> None:
        self._bucket, self._files = bucket, files
        self.manifest = manifest
        self.size_bytes = end.size_bytes if end is not None else 0
        self.finished = end is not None

    @classmethod
    def open(cls, url: str, endpoint_url: str) -> Self:
        bucket = Bucket(url, endpoint_url)
        data = bucket.get(MANIFEST_NAME)
        if data is None:
            raise BadRequest(f"{url} is no export of Mooncask: there is no {MANIFEST_NAME}")
        return cls(bucket, decode_manifest(data, url), bucket.names("index"), decode_end(bucket.get(END_NAME), url))

    def blocks(self) -> Iterator[tuple[Entry, BucketPayload]]:
        for entry in _entries(self._bucket, self._files):
            yield entry, BucketPayload(self._bucket, _block_name(self.manifest, entry))

    def close(self) -> None:
        """Nothing is open between requests."""


def _entries(bucket: Bucket, files: Iterable[str]) -> Iterator[Entry]:
    for name in files:
        data = bucket.get(name)
        if data is not None:
            yield from decode_entries(data, f"{bucket.url}/{name}")


def _block_name(manifest: Manifest, entry: Entry) -> str:
    """Keys of objects may be longer than what a name may have."""
    return f"blocks/{entry.key if manifest.kind == 'kv' else sha256(entry.key_bytes).hexdigest()}"
