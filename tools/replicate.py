"""`mooncask replicate` and `warm`: blocks to another node, or into this node's memory, ahead of need."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer

from mooncask.client import control
from mooncask.client.control_client import ControlClient
from mooncask.errors import BadRequest, Busy
from mooncask.tools.connection import Json, Namespace, Socket, complete_key, connected, open_existing, socket_of
from mooncask.tools.housekeeping import Chain
from mooncask.tools.keys import format_size, parse_duration
from mooncask.tools.output import counted, print_json, printable
from mooncask.tools.prompt import Special, Text, TextFile, TokenizerPath, Tokens, prompt_tokens
from mooncask.tools.selection import select

OptionalKeys = Annotated[
    list[str] | None,
    typer.Argument(help="Keys of blocks, in hex.", metavar="[KEY...]", autocompletion=complete_key),
]
Salt = Annotated[str, typer.Option(help="The request's cache_salt.")]


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Which are meant: a prompt's, or those of these keys."""

    tokens: Sequence[int]
    keys: Sequence[str]


def replicate(
    namespace: Namespace,
    to: Annotated[str, typer.Option("--to", help="Name of the node that is to have them, or its host:port.")],
    keys: OptionalKeys = None,
    chain: Chain = False,
    tokens: Tokens = None,
    text: Text = None,
    file: TextFile = None,
    tokenizer: TokenizerPath = None,
    special: Special = True,
    cache_salt: Salt = "",
    within: Annotated[str, typer.Option("--within", help="How long it may take.", metavar="TIME")] = "30s",
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Copy blocks to another node, which pulls them from here: KEYs, or all of a prompt. Waits until it has them."""
    seconds = parse_duration(within)
    blocks = _chosen("replicate", namespace, keys, chain, prompt_tokens(tokens, text, file, tokenizer, special), socket)
    with ControlClient(socket_of(socket)) as client:
        done = client.replicate(namespace, to, blocks.tokens, blocks.keys, cache_salt, seconds)
    if as_json:
        print_json(msgspec.to_builtins(done))
    else:
        _say_replicated(namespace, done)
    if done.refused:
        raise Busy(f"{done.node} refused {counted(done.refused, 'block')}: {done.reason}")


def warm(
    namespace: Namespace,
    keys: OptionalKeys = None,
    chain: Chain = False,
    tokens: Tokens = None,
    text: Text = None,
    file: TextFile = None,
    tokenizer: TokenizerPath = None,
    special: Special = True,
    cache_salt: Salt = "",
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Bring blocks into memory ahead of need, from NVMe or other nodes: KEYs, or all of a prompt. Does not wait for them."""
    blocks = _chosen("warm", namespace, keys, chain, prompt_tokens(tokens, text, file, tokenizer, special), socket)
    with ControlClient(socket_of(socket)) as client:
        begun = client.warm(namespace, blocks.tokens, blocks.keys, cache_salt)
    if as_json:
        print_json(msgspec.to_builtins(begun))
        return
    said = f"{counted(begun.coming, 'block')} coming, {begun.in_memory} in memory already"
    left = f", {begun.left_out} left out for lack of room" if begun.left_out else ""
    missing = f", {begun.missing} that no node is known to have" if begun.missing else ""
    typer.echo(f"{printable(namespace)}: {said}{left}{missing}")


def _chosen(
    command: str, namespace: str, keys: list[str] | None, chain: bool, tokens: list[int] | None, socket: str | None
) -> _Blocks:
    if bool(keys) == (tokens is not None):
        raise BadRequest(f"{command}: give keys, or a prompt with --tokens, or --text or --file and --tokenizer")
    if not chain or tokens is not None:
        return _Blocks(tokens or [], keys or [])
    with connected(socket) as client:
        chosen = select(client, open_existing(client, namespace), keys or [], chain)
    chosen.raise_if_missing()
    return _Blocks([], chosen.names)


def _say_replicated(namespace: str, done: control.Replicated) -> None:
    size = format_size(done.copied_bytes)
    missing = f", {done.missing} not here" if done.missing else ""
    there = f", {done.there} there already" if done.there else ""
    copied = f"{counted(done.copied, 'block')} copied to {printable(done.node)} ({size})"
    typer.echo(f"{printable(namespace)}: {copied}{there}{missing}")
