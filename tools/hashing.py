"""`mooncask hash`: the keys of a prompt's blocks, for a namespace or for a family given by hand.

The scheme is docs/HASHING.md and `client/hashing.py`; this only asks and shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from mooncask.client.family import Family
from mooncask.client.hashing import chain, namespace_name, root
from mooncask.errors import BadRequest
from mooncask.tools.connection import Json, Socket, complete_namespace, connected, is_kv, open_existing
from mooncask.tools.family_options import FamilyFields, HashName, family_block_tokens, parse_family
from mooncask.tools.hash_vectors import check_vectors
from mooncask.tools.output import Column, console, counted, print_json, print_table
from mooncask.tools.prompt import Special, Text, TextFile, TokenizerPath, Tokens, prompt_tokens


@dataclass(frozen=True, slots=True)
class Start:
    """Where chains begin, and how they go on."""

    namespace: str
    fingerprint: bytes
    root: bytes
    block_tokens: int
    hash: str


def hash_command(
    namespace: Annotated[
        str | None,
        typer.Argument(
            help="A namespace of the daemon: its family and tenant. Without it, give --family.",
            metavar="[NS]",
            autocompletion=complete_namespace,
        ),
    ] = None,
    tokens: Tokens = None,
    text: Text = None,
    file: TextFile = None,
    tokenizer: TokenizerPath = None,
    special: Special = True,
    family: FamilyFields = None,
    block_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens a block; 0 = the family's block_tokens. It adds no field to the family.")
    ] = 0,
    hash_name: HashName = "sha256",
    salt: Annotated[str, typer.Option(help="The tenant's salt in hex; a namespace of the daemon has its own.")] = "",
    cache_salt: Annotated[str, typer.Option(help="The request's cache_salt.")] = "",
    shard: Annotated[str, typer.Option(help="For the name that the daemon would give.")] = "",
    tenant: Annotated[str, typer.Option(help="For the name that the daemon would give.")] = "",
    vectors: Annotated[
        Path | None, typer.Option(help="Recompute the test vectors of a file such as docs/HASHING.md, and compare.")
    ] = None,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Print the keys of a prompt's blocks. Without a namespace no daemon is asked."""
    if vectors is not None:
        check_vectors(vectors, as_json)
        return
    ids = prompt_tokens(tokens, text, file, tokenizer, special)
    if ids is None:
        raise BadRequest("hash: give the prompt with --tokens, or with --text or --file and --tokenizer")
    if namespace is not None:
        start = _start_of(namespace, socket, cache_salt, block_tokens)
    else:
        start = _start_by_hand(
            parse_family(family or []), hash_name, _hex(salt) + cache_salt.encode(), block_tokens, shard, tenant
        )
    _print(start, ids, chain(start.root, ids, start.block_tokens, hash=start.hash), as_json)


def _start_of(name: str, socket: str | None, cache_salt: str, block_tokens: int) -> Start:
    with connected(socket) as client:
        handle = open_existing(client, name)
        if not is_kv(handle):
            raise BadRequest(f"namespace {name} holds objects: their keys are names, not hashes")
        tokens = family_block_tokens(handle.request.family, block_tokens)
        return Start(name, handle.fingerprint, handle.root(cache_salt), tokens, handle.hash)


def _start_by_hand(family: Family, hash_name: str, salt: bytes, block_tokens: int, shard: str, tenant: str) -> Start:
    fingerprint = family.fingerprint(hash_name)
    return Start(
        namespace_name(fingerprint, shard, tenant),
        fingerprint,
        root(fingerprint, salt, hash_name),
        family_block_tokens(family, block_tokens),
        hash_name,
    )


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise BadRequest(f"salt {text[:40]}: hex is wanted, two digits a byte") from error


def _print(start: Start, tokens: Sequence[int], keys: Sequence[bytes], as_json: bool) -> None:
    tail = len(tokens) - len(keys) * start.block_tokens
    if as_json:
        print_json(
            {
                "namespace": start.namespace,
                "hash": start.hash,
                "fingerprint": start.fingerprint.hex(),
                "root": start.root.hex(),
                "block_tokens": start.block_tokens,
                "tokens": len(tokens),
                "tail_tokens": tail,
                "keys": [key.hex() for key in keys],
            }
        )
        return
    screen = console()
    screen.print(f"namespace {start.namespace}, {start.hash}, {start.block_tokens} tokens a block", markup=False)
    screen.print(f"fingerprint {start.fingerprint.hex()}, root {start.root.hex()}")
    step = start.block_tokens
    rows = [[str(i), f"{i * step}-{(i + 1) * step - 1}", key.hex()] for i, key in enumerate(keys)]
    print_table([Column("block", right=True), Column("tokens", right=True), Column("key")], rows)
    if tail:
        screen.print(f"no key for {counted(tail, 'token')} at the end, in no whole block")
