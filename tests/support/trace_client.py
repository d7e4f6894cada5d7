"""A client that asks a daemon for the prompts of a trace, as an engine does: look up, read what is there, put the rest."""

import hashlib
from collections.abc import Iterable

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.wire import HintFields
from mooncask.conductor.traces.request import Request

BLOCK_BYTES = 4096


def block_key(number: int) -> bytes:
    """A key as hashing makes them: 16 bytes that look random."""
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=16).digest()


def ask_for(client: LocalClient, namespace: NamespaceHandle, requests: Iterable[Request]) -> tuple[int, int]:
    """Blocks that were asked for and found, in matches."""
    asked = found = 0
    payload = bytes(BLOCK_BYTES)
    for request in requests:
        keys = [block_key(number) for number in request.hash_ids]
        hits = len(client.match(namespace, keys))
        hint = HintFields(expected_output=request.output_length, conversation=request.conversation, turn=request.turn)
        client.acquire(namespace, keys[:hits] or keys[:1], hint=hint).close()
        if fresh := keys[hits:]:
            parents = [b"" if depth == 0 else keys[depth - 1] for depth in range(hits, len(keys))]
            client.put(namespace, fresh, [payload] * len(fresh), parents=parents, depths=range(hits, len(keys)))
        asked, found = asked + len(keys), found + hits
    return asked, found
