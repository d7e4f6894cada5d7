"""A family as people give it on the command line: field by field, with the hash that its keys are made with."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from mooncask.client.family import Family
from mooncask.errors import BadRequest

FamilyFields = Annotated[
    list[str] | None, typer.Option("--family", help="A field of the family; repeat it.", metavar="NAME=VALUE")
]
HashName = Annotated[str, typer.Option("--hash", help="sha256 or xxh3_128.")]


def parse_family(fields: Sequence[str]) -> Family:
    """ "NAME=VALUE" each. Raises BadRequest."""
    pairs = [field.partition("=") for field in fields]
    wrong = next((name for name, equals, _ in pairs if not equals or not name), None)
    if wrong is not None:
        raise BadRequest(f'family "{wrong}": a field is given as NAME=VALUE')
    return Family({name: value for name, _, value in pairs})


def family_block_tokens(family: Mapping[str, str], asked: int) -> int:
    """Tokens a block: what was asked for, or the family's own. Raises BadRequest when neither says."""
    own = family.get("block_tokens", "")
    if not asked and not (own.isascii() and own.isdigit() and int(own)):
        raise BadRequest("the family has no block_tokens; give --block-tokens")
    return asked or int(own)
