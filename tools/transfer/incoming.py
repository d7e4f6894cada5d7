"""From an archive into the daemon: what is not here yet, each payload compared with its checksum before it is published."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from xxhash import xxh3_128, xxh3_128_hexdigest

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.wire import NamespaceKind
from mooncask.errors import BadRequest, DigestMismatch
from mooncask.tools.object_client import ObjectClient
from mooncask.tools.transfer.archive import Payload, Reader
from mooncask.tools.transfer.manifest import Entry, Manifest

BATCH_BLOCKS = 32
BATCH_BYTES = 32 << 20

Advance = Callable[[int], None]


@dataclass(slots=True)
class Imported:
    """Blocks of the archive by what became of them."""

    blocks: int = 0
    size_bytes: int = 0
    already: int = 0
    expired: int = 0
    wrong: list[str] = field(default_factory=list)
    """Keys of those whose bytes are not what was exported; they were not stored."""


def open_target(client: LocalClient, manifest: Manifest, name: str, mode: str) -> NamespaceHandle:
    """The namespace that takes the blocks, made if need be. Raises BadRequest when the keys would mean nothing in it."""
    exists = name in {found.name for found in client.status().namespaces}
    namespace = client.open_namespace(
        name,
        manifest.family,
        manifest.shard,
        mode or ("" if exists else manifest.mode),
        kind=NamespaceKind(manifest.kind),
        hash=manifest.hash,
    )
    if manifest.kind == "kv" and namespace.opened.root.hex() != manifest.root:
        raise BadRequest(
            f"the keys of this export begin at {manifest.root}, those of tenant {namespace.tenant} here at "
            f"{namespace.opened.root.hex()}: no prompt would ever hit; import it as a user of the tenant that exported it"
        )
    return namespace


def import_kv(client: LocalClient, namespace: NamespaceHandle, reader: Reader, advance: Advance) -> Imported:
    """KV blocks, in batches. A run that was stopped leaves whole prefixes, and the next one goes on."""
    result, batch = Imported(), _Batch(client, namespace)
    for entry, payload in reader.blocks():
        (have,) = client.stat(namespace, [entry.key_bytes])
        if _expired(entry):
            result.expired += 1
        elif have is not None and have.size == entry.size:
            result.already += 1
        elif (data := _checked(entry, payload)) is None:
            result.wrong.append(entry.key)
        else:
            batch.add(entry, data)
            result.blocks += 1
            result.size_bytes += entry.size
        advance(entry.size)
    batch.put()
    return result


def import_objects(
    client: LocalClient, namespace: NamespaceHandle, door: ObjectClient, reader: Reader, advance: Advance
) -> Imported:
    """Objects with their headers, one at a time; one that is here with the same bytes stays."""
    result = Imported()
    for entry, payload in reader.blocks():
        if _expired(entry):
            result.expired += 1
        elif _has_object(client, namespace, door, entry):
            result.already += 1
        else:
            _import_object(client, namespace, door, entry, payload, result)
        advance(entry.size)
    return result


class _Batch:
    """Blocks that are put with one request."""

    def __init__(self, client: LocalClient, namespace: NamespaceHandle) -> None:
        self._client, self._namespace = client, namespace
        self._durable = namespace.mode == "write_through"
        self._waiting: list[tuple[Entry, bytes]] = []
        self._size_bytes = 0

    def add(self, entry: Entry, data: bytes) -> None:
        if self._waiting and self._size_bytes + entry.size > BATCH_BYTES:
            self.put()
        self._waiting.append((entry, data))
        self._size_bytes += entry.size
        if len(self._waiting) == BATCH_BLOCKS:
            self.put()

    def put(self) -> None:
        """Raises what the daemon refuses with."""
        if not self._waiting:
            return
        entries = [entry for entry, _ in self._waiting]
        self._client.put(
            self._namespace,
            [entry.key_bytes for entry in entries],
            [data for _, data in self._waiting],
            parents=[bytes.fromhex(entry.parent) for entry in entries],
            depths=[entry.depth for entry in entries],
            tokens=[entry.tokens for entry in entries],
            durable=self._durable,
            digests=[bytes.fromhex(entry.checksum) for entry in entries],
        )
        for entry in entries:
            _set_ttl(self._client, self._namespace, entry)
        self._waiting, self._size_bytes = [], 0


def _import_object(
    client: LocalClient,
    namespace: NamespaceHandle,
    door: ObjectClient,
    entry: Entry,
    payload: Payload,
    result: Imported,
) -> None:
    try:
        key = _text_key(entry)
        door.put_pieces(namespace.name, key, entry.size, _held_back(entry, payload), entry.headers)
    except DigestMismatch:
        result.wrong.append(entry.key_bytes.decode(errors="backslashreplace"))
        return
    _set_ttl(client, namespace, entry)
    result.blocks += 1
    result.size_bytes += entry.size


def _text_key(entry: Entry) -> str:
    try:
        return entry.key_bytes.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"key {entry.key[:80]} of the archive is no UTF-8, as keys of objects are") from error


def _held_back(entry: Entry, payload: Payload) -> Iterator[bytes]:
    """The bytes, the last of them only when all are right: the daemon publishes no body that ends early.

    Raises DigestMismatch.
    """
    digest, size, before = xxh3_128(), 0, b""
    for chunk in payload.chunks():
        digest.update(chunk)
        size += len(chunk)
        if before:
            yield before
        before = chunk
    if size != entry.size or digest.hexdigest() != entry.checksum:
        raise DigestMismatch(entry.key, entry.checksum, digest.hexdigest())
    if before:
        yield before


def _checked(entry: Entry, payload: Payload) -> bytes | None:
    """None when the bytes are not those that were exported."""
    data = b"".join(payload.chunks())
    return data if len(data) == entry.size and xxh3_128_hexdigest(data) == entry.checksum else None


def _has_object(client: LocalClient, namespace: NamespaceHandle, door: ObjectClient, entry: Entry) -> bool:
    """By the checksum that the daemon keeps; of an object longer than a block that is not the bytes' own, but its ETag is."""
    (have,) = client.stat(namespace, [entry.key_bytes])
    if have is None or have.size != entry.size:
        return False
    if have.checksum.hex() == entry.checksum:
        return True
    _, headers = door.headers_of(namespace.name, _text_key(entry))
    return headers.get("ETag", "") == entry.headers.get("ETag", "none")


def _expired(entry: Entry) -> bool:
    return bool(entry.expires_seconds) and entry.expires_seconds <= time.time()


def _set_ttl(client: LocalClient, namespace: NamespaceHandle, entry: Entry) -> None:
    if entry.expires_seconds:
        client.set_ttl(namespace, [entry.key_bytes], max(0.001, entry.expires_seconds - time.time()))
