"""DeleteObjects: up to 1,000 keys in one request, each with its own outcome."""

import asyncio
from dataclasses import dataclass

from aiohttp import web

from mooncask.daemon.http.bodies.body import read_document
from mooncask.daemon.http.callers.caller import caller_of
from mooncask.daemon.http.s3.buckets import XML
from mooncask.daemon.http.s3.target import KEY_BYTES_MAX, block_key
from mooncask.daemon.http.s3.xml import KeyFailure, deleted_document
from mooncask.daemon.http.s3.xml_request import Element, parse_xml
from mooncask.daemon.service import Service
from mooncask.errors import KeyTooLong, MalformedXml, MooncaskError, NoSuchBlock
from mooncask.tiers.namespace import Namespace

KEYS_MAX = 1000
DOCUMENT_BYTES_MAX = 8 << 20
"""1,000 of the longest keys, each character written as an entity."""


@dataclass(frozen=True, slots=True)
class DeleteRequest:
    """`keys` are to go; those in `failures` can't be what they are said to be."""

    keys: list[str]
    failures: list[KeyFailure]
    quiet: bool


class MultiDelete:
    """One for all requests."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def delete_many(self, request: web.Request, namespace: Namespace) -> web.StreamResponse:
        """200 with what happened to each key; a key that was not there is deleted as well. Durable when it answers."""
        document = await read_document(request, caller_of(request), DOCUMENT_BYTES_MAX, self._service.config.http)
        asked = await asyncio.to_thread(parse_delete_request, document)
        deleted, failures = asked.keys, asked.failures
        try:
            await self._service.store.evict(namespace, _block_keys(namespace, asked.keys))
        except MooncaskError as error:
            failures = failures + [KeyFailure(key, error.code, error.message) for key in asked.keys]
            deleted = []
        return web.Response(body=deleted_document([] if asked.quiet else deleted, failures), content_type=XML)


def parse_delete_request(document: bytes) -> DeleteRequest:
    """Raises MalformedXml, also for more than KEYS_MAX keys, as S3 does."""
    root = parse_xml(document, "Delete")
    objects = list(root.all("Object"))
    if not 0 < len(objects) <= KEYS_MAX:
        raise MalformedXml(f"{len(objects)} keys; 1 to {KEYS_MAX} can be deleted at a time")
    keys, failures = list[str](), list[KeyFailure]()
    for element in objects:
        if sum(1 for _ in element.all("Key")) != 1:
            raise MalformedXml("an Object has one Key")
        key = element.value("Key")
        failure = _failure(element, key)
        if failure is None:
            keys.append(key)
        else:
            failures.append(failure)
    return DeleteRequest(keys, failures, root.value("Quiet").strip().lower() == "true")


def _failure(element: Element, key: str) -> KeyFailure | None:
    """Why this one is not deleted: conditions that can't be kept are no reason to delete unconditionally."""
    size_bytes = len(key.encode())
    if not size_bytes:
        raise MalformedXml("an Object without Key")
    if size_bytes > KEY_BYTES_MAX:
        return KeyFailure(key, KeyTooLong.code, KeyTooLong(size_bytes, KEY_BYTES_MAX).message)
    if element.value("VersionId", "null") != "null":
        return KeyFailure(key, "NoSuchVersion", "there are no versions; null names the only one")
    for name in ("ETag", "LastModifiedTime", "Size"):
        if element.value(name):
            return KeyFailure(key, "NotImplemented", f"deleting by {name} is not implemented; the object was kept")
    return None


def _block_keys(namespace: Namespace, keys: list[str]) -> list[bytes]:
    found = []
    for key in keys:
        try:
            found.append(block_key(namespace, key.encode()))
        except NoSuchBlock:
            continue  # no block can be called so: there is nothing to delete
    return found
