"""The family of a transformers model: every field that must be equal for two workers to exchange KV.

The digest of the weights is made in `engine_adapter/weights.py`.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import transformers

from mooncask.engine_adapter.transformers.kv_layout import LAYOUT, KvLayout
from mooncask.engine_adapter.weights import weights_digest

NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
"""Config fields that say where it came from, or that are family fields of their own."""


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


def _plain(value: Any) -> Any:
    return value.to_dict() if hasattr(value, "to_dict") else value


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:32]
