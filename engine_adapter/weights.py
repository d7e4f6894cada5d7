"""Which weights a model has: a digest that every engine's family can carry. Needs no engine and no torch.

Weight files are told apart by their safetensors headers, their sizes and a sample of every tensor's bytes: headers
alone are equal for two fine-tunes of one model. Reading a sample takes milliseconds where hashing whole files would
take minutes for large models; two files that differ only in bytes between the samples would be confused.
"""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from mooncask.errors import ConfigError

HEADER_BYTES_MAX = 100 << 20
SAMPLE_BYTES = 4096


def weights_digest(folder: Path) -> str:
    """Of every *.safetensors file: name, size, header, and the first, middle and last bytes of every tensor."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError("--model", str(folder), "must hold *.safetensors files; other weight formats are not read")
    state = sha256()
    for path in files:
        size = path.stat().st_size
        state.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            for part in _identifying_bytes(file, size, path):
                state.update(len(part).to_bytes(8, "little") + part)
    return state.hexdigest()[:32]


def _identifying_bytes(file: BinaryIO, size: int, path: Path) -> Iterator[bytes]:
    """A safetensors file is a u64 (little endian) length, that many bytes of JSON, then the tensors' bytes."""
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(size - 8, HEADER_BYTES_MAX):
        raise ConfigError("--model", str(path), "is not a safetensors file: its header length is impossible")
    header = file.read(length)
    yield header
    for start, stop in _tensor_ranges(header, path):
        for offset in sorted({start, (start + stop) // 2, max(start, stop - SAMPLE_BYTES)}):
            file.seek(8 + length + offset)
            yield file.read(min(SAMPLE_BYTES, stop - offset))


def _tensor_ranges(header: bytes, path: Path) -> list[tuple[int, int]]:
    try:
        fields = json.loads(header)
        return sorted(tuple(tensor["data_offsets"]) for name, tensor in fields.items() if name != "__metadata__")
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ConfigError("--model", str(path), f"is not a safetensors file: {exc}") from exc
