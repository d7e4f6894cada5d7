"""The family of a transformers model: every field that must be equal for two workers to exchange KV.

Weight files are told apart by their safetensors headers, their sizes and a sample of every tensor's bytes: headers
alone are equal for two fine-tunes of one model. Reading a sample takes milliseconds where hashing whole files would
take minutes for large models; two files that differ only in bytes between the samples would be confused.
"""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import transformers

from mooncask.engine_adapter.transformers.kv_layout import LAYOUT, KvLayout
from mooncask.errors import ConfigError

NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
"""Config fields that say where it came from, or that are family fields of their own."""
HEADER_BYTES_MAX = 100 << 20
SAMPLE_BYTES = 4096


def family_of(config: Any, folder: Path, layout: KvLayout) -> dict[str, str]:
    """`config` is the effective one, after overrides; `folder` holds the weights. Raises ConfigError without any."""
    quantisation = getattr(config, "quantization_config", None)
    return {
        "engine": "transformers",
        "engine_major": transformers.__version__.split(".")[0],
        "config": config_digest(config.to_dict()),
        "weights": weights_digest(folder),
        "revision": str(getattr(config, "_commit_hash", None) or ""),
        "quantisation": "none" if quantisation is None else _digest(_canonical(_plain(quantisation))),
        "dtype": layout.dtype,
        "kv_layout": LAYOUT,
        "kv_shape": f"{layout.layers} x 2 x {layout.kv_heads} x {layout.head_dim}",
        "block_tokens": str(layout.block_tokens),
        "lora": "none",
    }


def config_digest(fields: dict[str, Any]) -> str:
    """Of the canonical JSON: sorted names, no blanks; values that JSON lacks by their text."""
    return _digest(_canonical({name: value for name, value in fields.items() if name not in NOT_OF_THE_MODEL}))


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


def _plain(value: Any) -> Any:
    return value.to_dict() if hasattr(value, "to_dict") else value


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:32]
