"""What a place that holds an export can do; a tar and a bucket are two (`tar_archive.py`, `bucket_archive.py`)."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from mooncask.errors import BadRequest
from mooncask.tools.transfer.manifest import Entry, Manifest

Chunks = Iterable[bytes | memoryview]


class Writer(Protocol):
    """Being written; one thread. What was added before a stop is found again by the next run."""

    @property
    def already(self) -> Mapping[str, str]:
        """`manifest.mark` by key of the blocks that an earlier run wrote whole."""
        ...

    def add(self, entry: Entry, payload: Chunks) -> None:
        """One block more; `payload` has `entry.size` bytes."""

    def finish(self) -> None:
        """All is in: says so in the archive, and makes it durable."""

    def close(self) -> None:
        """Gives up what is open; without `finish` the archive stays unfinished, and can be gone on with."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Payload(Protocol):
    """The bytes of one block, read when they are asked for, once, and before the next block."""

    def chunks(self) -> Iterator[bytes]: ...


class Reader(Protocol):
    """Being read; one thread."""

    @property
    def manifest(self) -> Manifest: ...
    @property
    def size_bytes(self) -> int:
        """About how much there is to read, for a progress bar; 0 = unknown."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the end was there; known after the last block."""
        ...

    def blocks(self) -> Iterator[tuple[Entry, Payload]]:
        """Parents before what continues them."""
        ...

    def close(self) -> None: ...


def open_writer(target: str, manifest: Manifest, endpoint_url: str) -> Writer:
    """A tar file, "-" for a tar on stdout, or s3://bucket/prefix. Raises BadRequest when it holds something else."""
    if target.startswith("s3://"):
        from mooncask.tools.transfer.bucket_archive import BucketWriter

        return BucketWriter.open(target, manifest, endpoint_url)
    from mooncask.tools.transfer.tar_archive import TarWriter

    _check_no_url(target)
    return TarWriter.to_stdout(manifest) if target == "-" else TarWriter.to_file(Path(target), manifest)


def open_reader(source: str, endpoint_url: str) -> Reader:
    """The same places. Raises BadRequest when that is no export."""
    if source.startswith("s3://"):
        from mooncask.tools.transfer.bucket_archive import BucketReader

        return BucketReader.open(source, endpoint_url)
    from mooncask.tools.transfer.tar_archive import TarReader

    _check_no_url(source)
    return TarReader.from_stdin() if source == "-" else TarReader.from_file(Path(source))


def _check_no_url(text: str) -> None:
    if "://" in text:
        raise BadRequest(f'{text}: a tar file, "-", or s3://bucket/prefix is wanted')
