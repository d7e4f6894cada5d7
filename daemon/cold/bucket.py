"""The S3 bucket, by way of obstore: the only module that asks it. Every failure is a BucketFault; what is not there is None.

obstore's futures run in threads of its own; cancelling one ends its request.
"""

import asyncio
import datetime
import os
import re
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from mooncask.daemon.cold.settings import PACK_BYTES_MAX, split_bucket
from mooncask.daemon.config import ColdSection
from mooncask.errors import ConfigError

Result = TypeVar("Result")

CONNECT_SECONDS = 2.0
WRITE_SECONDS = 10.0
"""And so much more as the object takes at this pace:"""
WRITE_BYTES_PER_SECOND = 1e6
WRITE_RETRIES = 2
LIST_SECONDS = 10.0
"""For a page of a thousand names, and whatever else is small."""


_STATUS = re.compile(r"status code: (\d{3}(?: [A-Za-z ]+)?)")


class BucketFault(Exception):
    """The bucket did not do it. The text says why, in one line."""


@dataclass(frozen=True, slots=True)
class Found:
    """One object of a listing. `modified` is a second of the bucket's clock."""

    path: str
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class Version:
    """An object as it is now: what a conditional put must still find."""

    etag: str
    modified: float


class Bucket:
    """One prefix in one bucket. May be used by many tasks at once; bounding how many is the caller's business."""

    def __init__(self, obstore: Any, reader: Any, writer: Any) -> None:
        self._obstore = obstore
        self._reader = reader
        self._writer = writer

    async def get(self, path: str, seconds: float) -> memoryview | None:
        """A whole object, None when it is not there. Raises BucketFault."""

        async def whole() -> Any:
            result = await self._obstore.get_async(self._writer, path)
            return await result.bytes_async()

        data = await self._read(whole(), path, seconds)
        return None if data is None else memoryview(data)

    async def get_range(self, path: str, offset: int, length: int, seconds: float) -> memoryview | None:
        """[offset, offset + length), None when the object is not there or shorter. Raises BucketFault."""
        data = await self._read(
            self._obstore.get_range_async(self._reader, path, start=offset, length=length), path, seconds
        )
        return None if data is None or len(data) != length else memoryview(data)

    async def put(self, path: str, data: Any, *, version: Version | None = None, only_new: bool = False) -> bool:
        """One request, whole or not at all. With a condition: whether it held. Raises BucketFault."""
        mode: Any = "create" if only_new else None
        if version is not None:
            mode = {"e_tag": version.etag}
        exceptions, seconds = self._obstore.exceptions, WRITE_SECONDS + len(data) / WRITE_BYTES_PER_SECOND
        try:
            call = self._obstore.put_async(self._writer, path, data, use_multipart=False, mode=mode)
            await self._within(call, path, seconds)
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            return False
        except FileNotFoundError:
            raise BucketFault("there is no such bucket") from None
        return True

    async def version(self, path: str) -> Version | None:
        """Of the object now. Raises BucketFault."""
        head = await self._read(self._obstore.head_async(self._writer, path), path, LIST_SECONDS)
        return None if head is None else Version(head["e_tag"] or "", head["last_modified"].timestamp())

    async def delete(self, path: str) -> None:
        """Also of what is not there. Raises BucketFault."""
        await self._read(self._obstore.delete_async(self._writer, path), path, LIST_SECONDS)

    async def list(self, beginning: str) -> AsyncIterator[Found]:
        """All objects below `beginning`, which ends in a slash. Raises BucketFault."""
        pages: AsyncIterator[Any] = self._obstore.list(self._writer, beginning, chunk_size=1000).__aiter__()
        while True:
            try:
                page: Any = await self._within(anext(pages), beginning, LIST_SECONDS)
            except (StopAsyncIteration, FileNotFoundError):
                return
            for found in page:
                yield Found(found["path"], found["size"], found["last_modified"].timestamp())

    async def _read(self, call: Awaitable[Any], path: str, seconds: float) -> Any:
        try:
            return await self._within(call, path, seconds)
        except FileNotFoundError:
            return None

    async def _within(self, call: Awaitable[Result], path: str, seconds: float) -> Result:
        exceptions = self._obstore.exceptions
        try:
            async with asyncio.timeout(seconds):
                return await call
        except TimeoutError:
            raise BucketFault(f"no answer within {seconds:.3g} s") from None
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileNotFoundError):
            raise
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise BucketFault(f"it refuses {path}: {_one_line(error)}") from error
        except (exceptions.BaseError, OSError) as error:
            raise BucketFault(_one_line(error)) from error


def open_bucket(section: ColdSection, secret: str) -> Bucket:
    """Asks nothing yet. Raises ConfigError when the package is missing."""
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        allowed = 'needs the package "obstore" (pip install mooncask[cold])'
        raise ConfigError("cold.bucket", f'"{section.bucket}"', allowed) from error
    make: Any = obstore.store.S3Store

    def store(retries: int, seconds: float) -> Any:
        bucket, prefix = split_bucket(section.bucket)
        options = {
            "allow_http": section.endpoint.startswith("http://"),
            "connect_timeout": datetime.timedelta(seconds=min(CONNECT_SECONDS, seconds)),
            "timeout": datetime.timedelta(seconds=seconds),
        }
        return make(
            bucket,
            prefix=prefix or None,
            config=_store_config(section, secret),
            client_options=options,
            retry_config={"max_retries": retries, "retry_timeout": datetime.timedelta(seconds=seconds)},
        )

    longest = WRITE_SECONDS + PACK_BYTES_MAX / WRITE_BYTES_PER_SECOND
    return Bucket(obstore, store(0, section.deadline), store(WRITE_RETRIES, longest))


def _store_config(section: ColdSection, secret: str) -> dict[str, Any]:
    config: dict[str, Any] = {"region": section.region}
    if section.endpoint:
        config["endpoint"] = section.endpoint.rstrip("/")
    if section.access_key:
        config |= {"access_key_id": section.access_key, "secret_access_key": secret}
    elif urlsplit(section.endpoint).scheme == "http" and not os.environ.get("AWS_ACCESS_KEY_ID"):
        config["skip_signature"] = True  # on loopback, where there may be no keys at all
    return config


def _one_line(error: BaseException) -> str:
    """What is of use of it: obstore repeats the whole URL and begins to show the answer's XML."""
    line = str(error).split("\n")[0]
    status = _STATUS.search(line)
    return f"it answers {status[1]}" if status else line.rpartition(" - ")[2][:200]
