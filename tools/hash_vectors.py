"""`mooncask hash --vectors`: recomputes published test vectors, such as those in docs/HASHING.md, and compares."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from mooncask.client.family import Family
from mooncask.client.hashing import chain, encode_extra, namespace_name, root
from mooncask.errors import BadRequest
from mooncask.tools.exit_codes import DATA
from mooncask.tools.output import complain, console, counted, print_json

_JSON_BLOCK = re.compile(r"```json\n(.*?)```", re.DOTALL)


def check_vectors(file: Path, as_json: bool) -> None:
    """Ends with exit code 65 at the first wrong one. Raises BadRequest for a file without vectors."""
    wanted = _read_vectors(file)
    found = [_recomputed(vector) for vector in wanted]
    if as_json:
        print_json([vector | ours for vector, ours in zip(wanted, found, strict=True)])
    for i, (vector, ours) in enumerate(zip(wanted, found, strict=True)):
        for field, value in ours.items():
            if vector.get(field) != value:
                complain(f"{file}, vector {i}: {field} is {value} here and {vector.get(field)} there")
                raise typer.Exit(DATA)
    if not as_json:
        keys = sum(len(ours["keys"]) for ours in found)
        console().print(f"{counted(len(found), 'vector')} with {counted(keys, 'key')}: all as published")


def _read_vectors(file: Path) -> list[dict[str, Any]]:
    text = file.read_text()
    found = _JSON_BLOCK.search(text)
    try:
        vectors: list[dict[str, Any]] = json.loads(found[1] if found else text)
    except ValueError as error:
        raise BadRequest(f"{file}: no JSON list of test vectors ({error})") from error
    return vectors


def _recomputed(vector: Mapping[str, Any]) -> dict[str, Any]:
    """What the inputs of a vector give here, under the names of the published results."""
    family, name = Family(vector["family"]), str(vector["hash"])
    fingerprint = family.fingerprint(name)
    begin = root(fingerprint, bytes.fromhex(vector["salt"]), name)
    extras = [encode_extra({key: bytes.fromhex(value) for key, value in extra.items()}) for extra in vector["extras"]]
    keys = chain(begin, vector["tokens"], vector["block_tokens"], extras, name)
    return {
        "encoded": family.encoded.hex(),
        "fingerprint": fingerprint.hex(),
        "namespace": namespace_name(fingerprint, vector["shard"], vector["tenant"]),
        "root": begin.hex(),
        "extra_bytes": [extra.hex() for extra in extras],
        "keys": [key.hex() for key in keys],
    }
