"""`mooncask why`: how much of a prompt is here, the first block that missed, and what became of it.

The daemon gives the verdicts (its bounded log of departures knows them); this asks and shows. Exit status: 0 when every
whole block of the prompt is here, 1 when one is not.
"""

import re
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mooncask.client.control import Why, WhyBlock
from mooncask.client.control_client import ControlClient
from mooncask.errors import BadRequest
from mooncask.tools.connection import Json, Socket, complete_namespace, socket_of
from mooncask.tools.exit_codes import ANSWER_IS_NO
from mooncask.tools.output import Column, console, counted, print_json, print_table
from mooncask.tools.prompt import Special, Text, TextFile, TokenizerPath, Tokens, prompt_tokens

_HEX_KEYS = re.compile(r"[\s,0-9a-fA-F]*")


def why(
    namespace: Annotated[
        str | None, typer.Argument(help="Name of a namespace.", metavar="NS", autocompletion=complete_namespace)
    ] = None,
    tokens: Tokens = None,
    text: Text = None,
    file: TextFile = None,
    tokenizer: TokenizerPath = None,
    special: Special = True,
    keys: Annotated[
        str | None, typer.Option(help="The chain's keys in hex, between commas or spaces, or a file of them.")
    ] = None,
    cache_salt: Annotated[str, typer.Option(help="The request's cache_salt.")] = "",
    all_blocks: Annotated[bool, typer.Option("--all", help="Also a line for every block of the prompt.")] = False,
    request: Annotated[
        str | None, typer.Option(help="A Conductor's request, by the id in its answer: where it went, and why.")
    ] = None,
    conductor: Annotated[str, typer.Option(help="With --request: where the Conductor is.")] = "http://127.0.0.1:9475",
    token: Annotated[
        str, typer.Option(envvar="MOONCASK_CONDUCTOR_ADMIN_TOKEN", help="With --request: the Conductor's admin token.")
    ] = "",
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Explain a miss: which block of a prompt is not here, and why. Exit status 0 if all are here, 1 if not.

    With --request: one request's way through a Conductor.
    """
    if request is not None:
        _print_request(request, conductor, token, as_json)
        return
    if namespace is None:
        raise BadRequest("why: give a namespace and a prompt, or --request with a request's id")
    ids = prompt_tokens(tokens, text, file, tokenizer, special)
    if (ids is None) == (keys is None):
        raise BadRequest("why: give the prompt with --tokens, with --text or --file and --tokenizer, or with --keys")
    with ControlClient(socket_of(socket)) as control:
        found = control.why(namespace, tokens=ids or (), keys=read_keys(keys) if keys else (), cache_salt=cache_salt)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        _print(found, all_blocks)
    if found.first_miss is not None:
        raise typer.Exit(ANSWER_IS_NO)


def read_keys(source: str) -> list[str]:
    """Keys that stand in `source` itself, or in the file that it names. Raises BadRequest."""
    data = source if _HEX_KEYS.fullmatch(source) else Path(source).read_text()
    if not _HEX_KEYS.fullmatch(data):
        raise BadRequest(f"{source}: keys are hex, between commas or spaces")
    found = data.replace(",", " ").lower().split()
    if not found:
        raise BadRequest(f"{source}: no keys")
    return found


def _print_request(request: str, conductor: str, token: str, as_json: bool) -> None:
    from mooncask.tools import why_request

    page = why_request.ask_conductor(conductor, request, token)
    if as_json:
        print_json(msgspec.to_builtins(page))
        return
    for line in why_request.story(page):
        console().print(line, markup=False, soft_wrap=True)


def _print(found: Why, all_blocks: bool) -> None:
    screen = console()
    for line in story(found):
        screen.print(line, markup=False, soft_wrap=True)
    if all_blocks and found.chain:
        print_table(
            [Column("block", right=True), Column("key"), Column("verdict"), Column("tiers"), Column("what happened")],
            [[str(block.index), block.key, block.verdict, " ".join(block.tiers), block.text] for block in found.chain],
        )


def story(found: Why) -> list[str]:
    """The answer as lines: how much hit, the first miss, what is elsewhere, what to do."""
    if not found.blocks:
        tail = counted(found.tail_tokens, "token")
        return [
            f"{found.namespace}: no block is filled by {tail}, {found.block_tokens} make one; nothing is ever stored"
        ]
    hit = f"{found.hit_blocks:,} of {counted(found.blocks, 'block')}"
    asked_tokens = found.blocks * found.block_tokens
    in_tokens = f" ({found.hit_tokens:,} of {asked_tokens:,} tokens)" if found.block_tokens else ""
    lines = [f"{found.namespace}: {hit} hit{in_tokens}"]
    if found.tail_tokens:
        lines[0] += f", {counted(found.tail_tokens, 'token')} at the end in no whole block"
    if found.first_miss is not None:
        lines += _miss(found, found.first_miss)
    if found.recomputed:
        lines.append(f"not loaded: {found.recomputed}")
    for other in found.elsewhere:
        lines.append(f"elsewhere: {other.namespace} has {counted(other.blocks, 'block')} of this prompt; what differs:")
        lines += [f"    {difference}" for difference in other.differs]
    if found.advice:
        lines.append(f"advice: {found.advice}")
    return lines


def _miss(found: Why, miss: WhyBlock) -> list[str]:
    lines = [f"first miss: block {miss.index}, key {miss.key}", f"    {miss.text or miss.verdict}"]
    if found.later_hits:
        lines.append(f"    of no use without it: {counted(found.later_hits, 'later block')}")
    return lines
