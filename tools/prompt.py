"""A prompt as people give it to `why` and `hash`: token ids on the command line or in a file, or text with a tokenizer.

Tokenizers are optional packages, imported only when text is to be encoded.
"""

import errno
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mooncask.errors import BadArgument, BadRequest

TOKENS_MAX = 4 << 20
"""More than any model's context: a wrong file is refused instead of hashed."""
_IDS = re.compile(r"[\s\d,]*")

Tokens = Annotated[
    str | None,
    typer.Option(help='Token ids, such as "1,2,3", or a file of them (JSON, or numbers between commas or spaces).'),
]
Text = Annotated[str | None, typer.Option(help="The prompt as text; needs --tokenizer.")]
TextFile = Annotated[
    Path | None, typer.Option("--file", help='A file with the prompt as text, "-" for stdin; needs --tokenizer.')
]
TokenizerPath = Annotated[
    Path | None, typer.Option("--tokenizer", help="A tokenizer.json, or the folder of a model.", metavar="DIR|FILE")
]
Special = Annotated[
    bool,
    typer.Option("--special-tokens/--no-special-tokens", help="Whether the tokenizer adds the model's own tokens."),
]


def prompt_tokens(
    tokens: str | None, text: str | None, file: Path | None, tokenizer: Path | None, special: bool
) -> list[int] | None:
    """The prompt's token ids; None when none of the ways was used. Raises BadRequest and BadArgument."""
    given = [name for name, value in (("--tokens", tokens), ("--text", text), ("--file", file)) if value is not None]
    if len(given) > 1:
        raise BadRequest(f"{' and '.join(given)}: a prompt is given in one way")
    if tokens is not None:
        return read_tokens(tokens)
    if not given:
        return None
    if tokenizer is None:
        raise BadRequest(f"{given[0]} is text and needs --tokenizer, the tokenizer.json or folder of the model")
    return encode(_read_text(file) if file is not None else text or "", tokenizer, special)


def read_tokens(source: str) -> list[int]:
    """Ids that stand in `source` itself, or in the file that it names."""
    if _IDS.fullmatch(source):
        return _numbers(source, "--tokens")
    data = sys.stdin.read() if source == "-" else _read_ids(source)
    if data.lstrip().startswith("["):
        return _json_numbers(data, source)
    return _numbers(data, source)


def encode(text: str, tokenizer: Path, special: bool) -> list[int]:
    """Token ids of `text`. Raises BadArgument when the tokenizer or its package is not there."""
    file = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
    if not file.is_file():
        return _encode_by_model(text, tokenizer, special)
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise BadArgument(
            "--tokenizer", str(file), 'needs the package "tokenizers" (pip install tokenizers)'
        ) from error
    try:
        loaded: Any = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises bare Exceptions
        raise BadArgument("--tokenizer", str(file), f"is no tokenizer.json ({error})") from error
    return list(loaded.encode(text, add_special_tokens=special).ids)


def _encode_by_model(text: str, folder: Path, special: bool) -> list[int]:
    """For folders that have no tokenizer.json: sentencepiece models and the like, through transformers."""
    if not folder.is_dir():
        raise BadArgument("--tokenizer", str(folder), "must be a tokenizer.json, or the folder of a model")
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise BadArgument(
            "--tokenizer", str(folder), 'has no tokenizer.json; others need the package "transformers"'
        ) from error
    try:
        loaded: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError) as error:
        raise BadArgument(
            "--tokenizer", str(folder), f"holds no tokenizer that transformers knows ({error})"
        ) from error
    return list(loaded.encode(text, add_special_tokens=special))


def _read_text(file: Path) -> str:
    return sys.stdin.read() if str(file) == "-" else file.read_text()


def _read_ids(source: str) -> str:
    """What is no id and names no file is more often a slip in the ids than in the name."""
    try:
        return Path(source.removeprefix("@")).read_text()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):
            raise
        raise BadArgument("--tokens", source[:80], 'neither token ids, such as "1,2,3", nor a file of them') from error


def _json_numbers(data: str, source: str) -> list[int]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise BadRequest(f"{source}: no JSON list of token ids ({error})") from error
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in found):
        raise BadRequest(f"{source}: token ids are whole numbers")
    return _checked(found, source)


def _numbers(data: str, source: str) -> list[int]:
    if not _IDS.fullmatch(data):
        raise BadRequest(f"{source}: token ids are numbers between commas or spaces, or a JSON list")
    return _checked([int(word) for word in data.replace(",", " ").split()], source)


def _checked(tokens: Sequence[int], source: str) -> list[int]:
    if not tokens:
        raise BadRequest(f"{source}: no token ids; an empty prompt has no blocks")
    if len(tokens) > TOKENS_MAX:
        raise BadRequest(f"{source}: {len(tokens)} token ids; at most {TOKENS_MAX} make a prompt")
    return list(tokens)
