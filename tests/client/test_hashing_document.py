"""docs/HASHING.md is complete: its vectors follow from its text alone, and the code agrees with both."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import xxhash

from mooncask.client.family import Family
from mooncask.client.hashing import chain, encode_extra, namespace_name, root

DOCUMENT = Path(__file__).parents[2] / "docs" / "HASHING.md"
Vector = dict[str, Any]


def vectors() -> list[Vector]:
    block = re.search(r"```json\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert block is not None
    found: list[Vector] = json.loads(block[1])
    assert len(found) >= 4
    return found


def lp(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def h(name: str, data: bytes) -> bytes:
    if name == "sha256":
        return hashlib.sha256(data).digest()[:16]
    return int(xxhash.xxh3_128_intdigest(data, 0)).to_bytes(16, "big")


@pytest.mark.parametrize("vector", vectors())
def test_a_second_implementation_written_from_the_document_gives_the_vectors(vector: Vector) -> None:
    fields = sorted((name.encode(), value.encode()) for name, value in vector["family"].items())
    encoded = b"mooncask family 1\0" + len(fields).to_bytes(4, "little") + b"".join(lp(n) + lp(v) for n, v in fields)
    assert encoded.hex() == vector["encoded"]
    fingerprint = h(vector["hash"], encoded)
    assert fingerprint.hex() == vector["fingerprint"]
    named = b"mooncask namespace 1\0" + lp(fingerprint) + lp(vector["shard"].encode()) + lp(vector["tenant"].encode())
    assert vector["namespace"] == "kv-" + hashlib.sha256(named).hexdigest()[:16]
    digest = h(vector["hash"], fingerprint + lp(bytes.fromhex(vector["salt"])))
    assert digest.hex() == vector["root"]
    for i, key in enumerate(vector["keys"]):
        items = sorted((name.encode(), bytes.fromhex(value)) for name, value in vector["extras"][i].items())
        extra = b"".join(lp(n) + lp(v) for n, v in items)
        assert extra.hex() == vector["extra_bytes"][i]
        tokens = vector["tokens"][i * vector["block_tokens"] : (i + 1) * vector["block_tokens"]]
        digest = h(vector["hash"], digest + b"".join(t.to_bytes(4, "little") for t in tokens) + extra)
        assert digest.hex() == key
    assert len(vector["keys"]) == len(vector["tokens"]) // vector["block_tokens"]


@pytest.mark.parametrize("vector", vectors())
def test_the_code_gives_the_vectors(vector: Vector) -> None:
    fingerprint = Family(vector["family"]).fingerprint(vector["hash"])
    assert namespace_name(fingerprint, vector["shard"], vector["tenant"]) == vector["namespace"]
    start = root(fingerprint, bytes.fromhex(vector["salt"]), vector["hash"])
    extras = [encode_extra({n: bytes.fromhex(v) for n, v in items.items()}) for items in vector["extras"]]
    keys = chain(start, vector["tokens"], vector["block_tokens"], extras, vector["hash"])
    assert [key.hex() for key in keys] == vector["keys"]
